"""A blocking connection for load: bytes out, bytes in, and what was read and not yet used."""

from __future__ import annotations

import select
import socket
import ssl
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from brokersite.rigs.bench.errors import BenchError

#: Seconds without any progress after which a run is given up.
TIMEOUT = 20.0
_MAX_READ = 1 << 18


class Endpoint(NamedTuple):
    """A broker's address. `authority` is the file (PEM) that signs its certificate: TLS is spoken then."""

    host: str
    port: int
    authority: str | None = None

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Login(NamedTuple):
    """The address of a broker with accounts, and the credentials; without a user those of the broker's default."""

    endpoint: Endpoint
    user: str = ""
    password: str = ""
    vhost: str = "/"

    def __str__(self) -> str:
        return f"{self.endpoint}{'' if self.vhost == '/' else f'/{self.vhost}'}"

    @classmethod
    def from_url(cls, url: str, port: int) -> Login:
        """The login that a URL names; `port` where it names none."""
        parts = urlsplit(url)
        return cls(
            Endpoint(parts.hostname or "127.0.0.1", parts.port or port), unquote(parts.username or ""),
            unquote(parts.password or ""), unquote(parts.path[1:]) or "/",
        )  # fmt: skip


class Stream:
    """A connection. `rest` are the bytes that were read and not yet used. Raises BenchError when it is gone."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.rest = bytearray()
        try:
            self.socket = socket.create_connection((endpoint.host, endpoint.port), timeout=TIMEOUT)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if endpoint.authority is not None:
                context = ssl.create_default_context(cafile=endpoint.authority)
                self.socket = context.wrap_socket(self.socket, server_hostname=endpoint.host)
        except ConnectionRefusedError:
            raise BenchError(
                f"Nothing listens on {endpoint}. Start the broker (`fivewire up`, in a checkout `make run`), or"
                " give its address with --address."
            ) from None
        except OSError as error:
            raise BenchError(f"No connection to {endpoint}: {error}") from error

    def send(self, data: bytes | bytearray) -> None:
        """Send all of it."""
        try:
            self.socket.sendall(data)
        except TimeoutError:
            raise BenchError(f"{self.endpoint} has read nothing for {TIMEOUT:g} s.") from None
        except OSError as error:
            self._explain(error)

    def read(self) -> None:
        """Wait for bytes and keep them."""
        try:
            data = self.socket.recv(_MAX_READ)
        except TimeoutError:
            raise BenchError(f"{self.endpoint} has said nothing for {TIMEOUT:g} s.") from None
        except OSError as error:
            raise BenchError(f"{self.endpoint} has closed the connection: {error}") from error
        if not data:
            raise BenchError(f"{self.endpoint} has closed the connection.")
        self.rest += data

    def read_within(self, seconds: float = 0.0) -> bool:
        """Read if anything comes in time; whether it did."""
        pending = isinstance(self.socket, ssl.SSLSocket) and self.socket.pending()
        if pending or select.select([self.socket], [], [], seconds)[0]:
            self.read()
            return True
        return False

    def take(self, size: int) -> bytes:
        """The next `size` bytes; waits for them."""
        while len(self.rest) < size:
            self.read()
        taken = bytes(self.rest[:size])
        del self.rest[:size]
        return taken

    def fileno(self) -> int:
        """The socket's, to wait for with others."""
        return self.socket.fileno()

    def close(self) -> None:
        """Drop the connection."""
        self.socket.close()

    def _explain(self, error: OSError) -> None:
        """The connection broke while sending: there may be a last word of the broker to be read."""
        self.read_within(0.2)
        raise BenchError(f"{self.endpoint} has closed the connection: {error}") from error
