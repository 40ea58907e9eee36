"""Lines that fit into those of a server, which puts the sender's `:nick!user@host ` before them. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from hydra.protocol.lines import command

#: Bytes of a line with its end, unless the server has named another number (RFC 2812, 2.3).
LINE: Final = 512
#: The longest host that a server shows (RFC 1035): counted until it has shown this client's.
MAX_HOST: Final = 63
#: The mark before a user name that the server did not ask for (`~`).
_MARK: Final = 1
#: Commands whose text may go in several lines.
_TEXTS: Final = frozenset({"PRIVMSG", "NOTICE"})
#: The command's word for the server's limit on its text, and the number of words before that.
_LIMITED: Final = {"TOPIC": ("topiclen", 2), "KICK": ("kicklen", 3)}
_CTCP: Final = "\x01"


class DoesNotFitError(ValueError):
    """The server would cut the line; the message says by how much."""


@dataclass(slots=True)
class OwnPrefix:
    """What the server puts before this client's lines, as far as it has told."""

    user: str
    host: str = ""

    def learn(self, user: str | None, host: str | None) -> None:
        """The server shows this client so."""
        self.user, self.host = user or self.user, host or self.host

    def hidden(self, words: str) -> None:
        """The server has given this client another host (396): `host` or `user@host`."""
        user, at, host = words.rpartition("@")
        self.learn(user if at else None, host)

    def size(self, nick: str) -> int:
        """Bytes of `:nick!user@host `."""
        host = len(self.host.encode()) if self.host else MAX_HOST + _MARK
        return len(nick.encode()) + len(self.user.encode()) + host + 4


def fit(line: str, prefix: int, features: Any = None) -> list[str]:
    """The line, or several with parts of its text, none of which the server would cut.

    `prefix` has the bytes that the server puts before it; `features` are those that the server has named (005).
    Raises DoesNotFitError for a line whose text cannot be parted.
    """
    whole = _number(features, "linelen", LINE) - 2
    body = line.partition(" ")[2].lstrip(" ") if line.startswith("@") else line
    name, most = command(body), whole - prefix
    _check_text(body, name, features)
    size = len(body.encode(errors="replace")) + (" :" not in body)  # the server writes the colon
    if size <= most:
        return [line]
    head, text = _cut_text(body)
    room = most - len(head.encode(errors="replace"))
    if name not in _TEXTS or text.startswith(_CTCP) or body is not line or room < len("\N{GRINNING FACE}".encode()):
        raise DoesNotFitError(
            f"a line of {size} bytes, to which the server adds {prefix}: over {whole}. Only the plain text of PRIVMSG "
            "and NOTICE goes in several lines"
        )
    return [head + part for part in _parts(text, room)]


def _check_text(body: str, name: str, features: Any) -> None:
    """Refuse a topic or a reason of which the server would drop the end."""
    if name in _LIMITED and (limit := _number(features, _LIMITED[name][0], 0)):
        words = body.split(" ", _LIMITED[name][1])
        size = len(words[-1].removeprefix(":").encode(errors="replace")) if len(words) > _LIMITED[name][1] else 0
        if size > limit:
            raise DoesNotFitError(f"a text of {size} bytes for {name}: the server takes {limit}")


def _cut_text(body: str) -> tuple[str, str]:
    """`PRIVMSG #channel :` and the text behind it."""
    words, colon, text = body.partition(" :")
    if not colon:
        words, _, text = body.rpartition(" ")
    return f"{words} :", text


def _parts(text: str, room: int) -> Iterator[str]:
    """Parts of at most `room` bytes, cut behind a space in their second half, else between characters."""
    while len(text.encode(errors="replace")) > room:
        at = len(text.encode(errors="replace")[:room].decode(errors="ignore"))
        if (space := text.rfind(" ", at // 2, at)) >= 0:
            at = space + 1
        yield text[:at]
        text = text[at:]
    if text:
        yield text


def _number(features: Any, name: str, default: int) -> int:
    """A number that the server has named, if it is one."""
    try:
        return int(getattr(features, name))
    except (AttributeError, TypeError, ValueError):
        return default
