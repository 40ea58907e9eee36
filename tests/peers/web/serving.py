"""The test application under real servers, and a WebSocket client that is nothing but a socket."""

from __future__ import annotations

import atexit
import base64
import contextlib
import datetime
import itertools
import json
import re
import shutil
import socket
import ssl
import struct
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar
from urllib.parse import quote

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from websockets.exceptions import InvalidMessage
from websockets.sync.client import ClientConnection, connect

from tests.certificates import with_key_identifiers
from tests.process import Process
from tests.waiting import PATIENCE, wait_until

#: Seconds for an opening handshake.
OPENING = 20.0

Opened = TypeVar("Opened")

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10

names = map("c{}".format, itertools.count())


class Server(Process):
    """A server process with the test application, on a free port."""

    ARGUMENTS = {
        "daphne": ["daphne", "-p", "0"],
        "tls": ["daphne"],
        "uvicorn": ["uvicorn", "--port", "0", "--no-access-log"],
    }

    def __init__(self, kind: str, *arguments: str, **environment: str) -> None:
        self.kind = kind
        self.address = ("", 0)
        if kind == "tls":
            crt, key = certificate()
            arguments = ("-e", f"ssl:0:privateKey={key}:certKey={crt}:interface=127.0.0.1", *arguments)
        super().__init__(
            sys.executable, "-m", *self.ARGUMENTS[kind], *arguments, "tests.peers.web.application:application",
            environment=environment, merged=True,
        )  # fmt: skip

    def note(self, line: str) -> None:
        if found := re.search(r"(?:Listening on TCP address |running on http://)([\d.]+):(\d+)", line):
            self.address = (found[1], int(found[2]))

    @property
    def ready(self) -> bool:
        """Whether it has said where it listens."""
        return self.address[1] != 0

    @property
    def context(self) -> ssl.SSLContext | None:
        """The TLS context to speak to it."""
        if self.kind != "tls":
            return None
        context = ssl.create_default_context(cafile=str(certificate()[0]))
        context.check_hostname = False
        return context

    def state(self, name: str, command: str = "") -> dict[str, Any]:
        """The state of the connection of that name, after a command for it to carry out."""
        url = f"http{'s' if self.context else ''}://{self.address[0]}:{self.address[1]}/{name}?{quote(command)}"
        request = urllib.request.Request(url, method="POST" if command else "GET")

        def ask() -> dict[str, Any]:
            timeout = PATIENCE if command else OPENING
            with urllib.request.urlopen(request, timeout=timeout, context=self.context) as answer:
                state: dict[str, Any] = json.load(answer)
                return state

        return ask() if command else self._opened(ask)

    def heard(self, name: str, *messages: str | None) -> None:
        """Wait until the connection of that name has heard exactly these."""
        wait_until(lambda: (self.state(name) or {}).get("heard") == [*messages], f"{messages} at {name}")

    def logged(self, words: str) -> None:
        """Wait until the server has logged these words."""
        wait_until(lambda: words in self.log, f"{words!r} in the log")

    def connect(self, name: str, path: str = "/ws/", **options: Any) -> ClientConnection:
        """A client of the websockets package."""
        url = f"ws{'s' if self.context else ''}://{self.address[0]}:{self.address[1]}{path}{name}"
        options = {"compression": None, "max_size": None, "open_timeout": OPENING} | options
        return self._opened(lambda: connect(url, ssl=self.context, **options))

    def raw(self, name: str, path: str = "/ws/", buffer: int = 0) -> Raw:
        """A socket that has done the handshake, perhaps with a small buffer for what it receives."""
        return self._opened(lambda: Raw(self, path + name, buffer))

    def _opened(self, attempt: Callable[[], Opened]) -> Opened:
        """Open a connection or ask.

        Over TLS unmodified daphne, too, leaves one request in a thousand unanswered; the connection is open until the
        client has waited long enough, or is dropped by Autobahn, which allows 5 s for an opening handshake.
        """
        for _ in range(2 if self.kind == "tls" else 0):
            with contextlib.suppress(TimeoutError, InvalidMessage, ConnectionError):
                return attempt()
        return attempt()


@cache
def certificate() -> tuple[Path, Path]:
    """Files with a certificate for 127.0.0.1 and its key."""
    directory = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, directory)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(
        name, name, key.public_key(), 1, now - datetime.timedelta(1), now + datetime.timedelta(1)
    ).add_extension(x509.BasicConstraints(True, None), True)
    signed = with_key_identifiers(builder, key, key, authority=True).sign(key, hashes.SHA256())
    crt_file, key_file = directory / "test.crt", directory / "test.key"
    crt_file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    key_file.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
    return crt_file, key_file


def frame(payload: bytes, opcode: int = TEXT, fin: bool = True, mask: bytes = b"\x01\x80\xfe\x33") -> bytes:
    """A client's frame; with an empty mask it is not masked, which is an error."""
    size = len(payload)
    head = bytes([fin << 7 | opcode])
    bit = 128 if mask else 0
    if size < 126:
        head += bytes([bit | size])
    else:
        head += struct.pack(">BH", bit | 126, size) if size < 1 << 16 else struct.pack(">BQ", bit | 127, size)
    stream = (mask or bytes(4)) * (size // 4 + 1)
    masked = int.from_bytes(payload) ^ int.from_bytes(stream[:size])
    return head + mask + masked.to_bytes(size)


def close_frame(code: int, reason: str) -> bytes:
    """The bytes of a server's close frame."""
    payload = struct.pack(">H", code) + reason.encode()
    return bytes([0x88, len(payload)]) + payload


class Frame(NamedTuple):
    """A frame from the server."""

    opcode: int
    payload: bytes


class Raw:
    """A WebSocket connection of which every byte is in the test's hands."""

    def __init__(self, server: Server, path: str, buffer: int) -> None:
        plain = socket.socket()
        if buffer:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        plain.settimeout(PATIENCE)
        plain.connect(server.address)
        context = server.context
        self.socket = context.wrap_socket(plain) if context else plain
        self.received = b""
        try:
            self._open(path)
        except BaseException:
            self.socket.close()
            raise

    def _open(self, path: str) -> None:
        self.socket.settimeout(OPENING)
        key = base64.b64encode(bytes(16)).decode()
        self.send(
            f"GET {path} HTTP/1.1\r\nHost: test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode()
        )
        self.take_until(b"HTTP/1.1 101")
        self.take_until(b"\r\n\r\n")
        self.socket.settimeout(PATIENCE)

    def send(self, *data: bytes) -> None:
        self.socket.sendall(b"".join(data))

    def take_until(self, mark: bytes) -> None:
        while mark not in self.received:
            self._receive()
        self.received = self.received.partition(mark)[2]

    def take(self, size: int) -> bytes:
        while len(self.received) < size:
            self._receive()
        taken, self.received = self.received[:size], self.received[size:]
        return taken

    def _receive(self) -> None:
        data = self.socket.recv(1 << 20)
        if not data:
            raise ConnectionAbortedError(f"the server closed the connection after {self.received[:200]!r}")
        self.received += data

    def read(self) -> Frame:
        """The next frame; it must be whole and unmasked."""
        first, size = self.take(2)
        assert first & 0xF0 == 0x80
        assert size < 128
        if size > 125:
            size = int.from_bytes(self.take(2 if size == 126 else 8))
        return Frame(first & 15, self.take(size))

    def rest(self) -> bytes:
        """Everything until the server's end of the connection."""
        while data := self.socket.recv(1 << 20):
            self.received += data
        rest, self.received = self.received, b""
        return rest

    def is_silent(self, seconds: float = 0.2) -> bool:
        """Whether nothing arrives for so long."""
        self.socket.settimeout(seconds)
        try:
            self.received += self.socket.recv(1 << 20)
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(PATIENCE)
        return False

    def send_until_stuck(self, data: bytes) -> tuple[int, bytes]:
        """Send it again and again until the kernel takes no more; how often in full, and the rest of the last one.

        It gives up at 64 MiB, which is more than kernels hold.
        """
        self.socket.settimeout(0.5)
        times, rest = 0, memoryview(data)
        try:
            while times * len(data) < 1 << 26:
                rest = rest[self.socket.send(rest) :]
                if not rest:
                    times, rest = times + 1, memoryview(data)
        except TimeoutError:
            pass
        finally:
            self.socket.settimeout(PATIENCE)
        return times, bytes(rest)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.socket.close()


@contextlib.contextmanager
def running(kind: str, *arguments: str, **environment: str) -> Iterator[Server]:
    """A server that runs."""
    with Server(kind, *arguments, **environment) as server:
        yield server
