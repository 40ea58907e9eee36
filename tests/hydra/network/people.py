"""A client of IRC: a raw socket, what came over it and when, and who is in the channel."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple, Self

from tests.hydra.network.nodes import CHANNEL
from tests.waiting import PATIENCE


class Heard(NamedTuple):
    """A line from the server."""

    at: float
    """On the monotonic clock."""
    line: str

    @property
    def nick(self) -> str:
        """The nick of the line's sender."""
        return self.line.removeprefix(":").partition(" ")[0].partition("!")[0]

    @property
    def command(self) -> str:
        return self.line.split(" ", 2)[1] if self.line.startswith(":") else self.line.partition(" ")[0]

    @property
    def text(self) -> str:
        """The text of a PRIVMSG."""
        return self.line.split(" ", 3)[3].removeprefix(":")


class Person:
    """A client in a channel. Its own lines are not told to it, as on any server."""

    def __init__(self, address: tuple[str, int], nick: str = "watcher", channel: str = CHANNEL) -> None:
        self.nick = nick
        self.channel = channel
        self.heard: list[Heard] = []
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._socket = socket.create_connection(address, PATIENCE)
        self._socket.settimeout(None)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.send(f"NICK {nick}", f"USER {nick} 0 * :{nick}")
        self.wait_for(lambda: self.lines("001"))
        self.send(f"JOIN {channel}")
        self.wait_for(lambda: [each for each in self.lines("JOIN") if each.nick == nick])

    def _read(self) -> None:
        rest = b""
        while data := self._receive():
            *lines, rest = (rest + data).split(b"\r\n")
            now = time.monotonic()
            with self._changed:
                self.heard += [Heard(now, line.decode(errors="surrogateescape")) for line in lines]
                self._changed.notify_all()

    def _receive(self) -> bytes:
        try:
            return self._socket.recv(1 << 16)
        except OSError:
            return b""

    # Actions.

    def send(self, *lines: str) -> None:
        """Send lines as they are."""
        with self._sending:
            self._socket.sendall("".join(f"{line}\r\n" for line in lines).encode())

    def say(self, text: str) -> float:
        """Say something in the channel; the moment before."""
        at = time.monotonic()
        self.send(f"PRIVMSG {self.channel} :{text}")
        return at

    # Received lines.

    def lines(self, command: str = "") -> list[Heard]:
        """The lines with a command."""
        return [each for each in list(self.heard) if not command or each.command == command]

    @property
    def texts(self) -> list[str]:
        """The others' texts in the channel."""
        return [each.text for each in self.lines("PRIVMSG")]

    def wait_for(self, condition: Callable[[], Any], what: str = "it", patience: float = PATIENCE) -> Any:
        """Wait until something is so; return what the condition gives then."""
        deadline = time.monotonic() + patience
        while not (result := condition()):
            with self._changed:
                if not self._changed.wait(min(0.05, deadline - time.monotonic())) and time.monotonic() > deadline:
                    raise AssertionError(f"{what} has not happened: {self.heard[-5:]}")
        return result

    def wait_joined(self, after: float) -> float:
        """Wait until a client has joined after a moment; when that was."""
        joins = self.wait_for(lambda: [each.at for each in self.lines("JOIN") if each.at > after], "a JOIN")
        return float(joins[0])

    def wait_text(self, text: str) -> None:
        """Wait until this was said."""
        self.wait_for(lambda: text in self.texts, repr(text))

    def stays(self) -> list[tuple[float, float | None]]:
        """From when to when, in order, another client was in the channel; None as the end: still there."""
        present: dict[str, float] = {}
        stays: list[tuple[float, float | None]] = []
        for each in self.lines():
            if each.nick == self.nick:
                continue
            if each.command == "JOIN":
                present[each.nick] = each.at
            elif each.command in ("QUIT", "PART") and each.nick in present:
                stays.append((present.pop(each.nick), each.at))
        return sorted([*stays, *((since, None) for since in present.values())], key=lambda stay: stay[0])

    def assert_never_two(self) -> None:
        """No two nodes were ever in the channel at once."""
        stays = self.stays()
        for (_, left), (joined, _) in pairwise(stays):
            assert left is not None, stays
            assert left <= joined, stays

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._reader.join()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
