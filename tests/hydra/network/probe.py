"""A node that is written by hand: lines as the document has them, over a plain socket, from either end."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Callable
from typing import Final, Self

from tests.waiting import PATIENCE

ID: Final = 12345
_PING: Final = re.compile(rb"PING ([0-9]+) (\S+) ([0-9]+)")
_DROP: Final = re.compile(rb"(?:@\S+ )?DROP ([0-9]+)")

Answer = Callable[[int, str, str], str]
"""The answer to a heartbeat: one's own id, its `val` and its leader's id give a line, or nothing."""


def as_documented(id: int, val: str, leader: str) -> str:
    """With one's own id, and a count of 0."""
    return f"PONG {val} {id} 0 probe"


def as_seen(id: int, val: str, leader: str) -> str:
    """With the leader's id and a count of 1, as one implementation does."""
    return f"PONG {val} {leader} 1 probe"


def not_at_all(id: int, val: str, leader: str) -> str:
    return ""


class Probe:
    """One end of a link. Heartbeats are answered by the way, and are not among the lines that are taken."""

    def __init__(self, connection: socket.socket, answer: Answer = as_documented, id: int = ID) -> None:
        self.socket = connection
        self.id = id
        self.answer = answer
        self.beats: list[bytes] = []
        self._received = b""

    @classmethod
    def dial(cls, address: tuple[str, int], answer: Answer = as_documented) -> Probe:
        """Connect to a node."""
        return cls(socket.create_connection(address, PATIENCE), answer)

    def send(self, *lines: str | bytes) -> None:
        """Send lines; a dead link takes them as a live one does."""
        data = b"".join((line.encode() if isinstance(line, str) else line) + b"\r\n" for line in lines)
        with contextlib.suppress(OSError):
            self.socket.sendall(data)

    def take(self, timeout: float = PATIENCE) -> bytes:
        """The next line that is no heartbeat, with its end; nothing when the link is over."""
        deadline = time.monotonic() + timeout
        while True:
            line, end, rest = self._received.partition(b"\n")
            if end:
                self._received = rest
                if (beat := _PING.match(line)) is None:
                    return line + end
                self.beats.append(line + end)
                if answer := self.answer(self.id, beat[2].decode(), beat[3].decode()):
                    self.send(answer)
                continue
            self.socket.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionError:
                return b""
            if not data:
                return b""
            self._received += data

    def expect(self, *lines: str) -> None:
        """The next lines are these, byte for byte."""
        for line in lines:
            assert self.take() == line.encode() + b"\r\n"

    def next_beat(self) -> tuple[int, str, int]:
        """The term, the `val` and the leader's id of the next heartbeat; nothing else comes before it."""
        count = len(self.beats)
        while len(self.beats) == count:
            with contextlib.suppress(TimeoutError):
                line = self.take(0.02)
                raise AssertionError(f"{line!r} and no heartbeat")
        found = _PING.fullmatch(self.beats[-1].removesuffix(b"\r\n"))
        assert found is not None, self.beats[-1]
        return int(found[1]), found[2].decode(), int(found[3])

    def stays(self, seconds: float) -> bool:
        """Answer heartbeats for so long; whether the link stands all the while, and this node in the network. Others
        may leave it: those of a flood are dropped once they were missed."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            try:
                line = self.take(left)
            except TimeoutError:
                return True
            dropped = _DROP.match(line)
            if not line or (dropped is not None and int(dropped[1]) == self.id):
                return False
        return True

    def knock(self) -> int:
        """Be let in, by a network of one; the id of the node that is knocked at."""
        self.send(f"KNOCK {ID} probe")
        meet = self.take().split()
        assert meet[:2] == [b"MEET", b"%d" % ID], meet
        there = int(meet[2])
        self.expect(f"WELCOME {ID}", f"HELLO {ID} {there}")
        return there

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.socket.close()


class Listener:
    """The address that a real node dials."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.socket.settimeout(PATIENCE)
        self.port = int(self.socket.getsockname()[1])

    def accept(self, answer: Answer = as_documented) -> Probe:
        """The next link."""
        return Probe(self.socket.accept()[0], answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.socket.close()
