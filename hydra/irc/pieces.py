"""Hydra's lines in the texts of private messages. No I/O.

    HY1 5f3c09a1 0 0 . KNOCK 12345 probe@5f3c09a1b2c3d4e5
    HY1 90b1c2d3 5f3c09a1 0 . MEET 12345 1804289383%0AWELCOME 12345
    HY1 90b1c2d3 5f3c09a1 1 < RECV 17 :somebody!u@h PRIVMSG #c :a line that does not fit
    HY1 90b1c2d3 5f3c09a1 2 >  into one message

After the mark: the sender's session, drawn for each link; the receiver's, or 0 while it is not known; a number that
counts from 0; what this is; text. Whole lines (`.`) have `%0A` between them; a line that does not fit comes in pieces,
the first `<`, the last `>`, those between `-`. `!` ends the link, with a reason.

`%XX` stands for a byte that not every server lets through: controls, a space at the end, what is not UTF-8, and the
percent sign. Characters are not cut in two.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from enum import StrEnum
from typing import Final, NamedTuple

MARK: Final = "HY1"

MAX_TEXT: Final = 350
"""Bytes of a private message: what is left of the 512 of a line after `:nick!user@host PRIVMSG nick :`."""

MAX_LINE: Final = 4096
"""Bytes of a line that is put together again: twice what Hydra allows."""

NOBODY: Final = "0"
"""Stands for a session that is not known."""

_FORM: Final = re.compile(r"HY1 ([0-9a-f]{8}|0) ([0-9a-f]{8}|0) ([0-9]{1,15}) ([.<>!-]) (.*)", re.DOTALL | re.ASCII)
_ESCAPED: Final = re.compile(rb"%([0-9A-F]{2})?")
_UNSAFE: Final = re.compile("[\x00-\x1f\x7f-\x9f%\udc80-\udcff]")


class Kind(StrEnum):
    """What a message has."""

    WHOLE = "."
    FIRST = "<"
    MIDDLE = "-"
    LAST = ">"
    BYE = "!"


class Piece(NamedTuple):
    """One private message."""

    session: str
    """The sender's."""
    to: str
    """The receiver's."""
    number: int
    kind: Kind
    text: str
    """Escaped."""

    def __str__(self) -> str:
        return f"{MARK} {self.session} {self.to} {self.number} {self.kind} {self.text}"


def parse_piece(text: str) -> Piece | None:
    """Read the text of a private message; None if it is none of ours."""
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    return Piece(match[1], match[2], int(match[3]), Kind(match[4]), match[5])


def escape(line: bytes) -> str:
    """Write bytes so that every server lets them through, but for a space at the end."""
    return _UNSAFE.sub(_escape_one, line.decode(errors="surrogateescape"))


def _escape_one(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode(errors="surrogateescape"))


def unescape(text: str) -> bytes:
    """What was escaped. Raises ValueError if this never was."""
    return _ESCAPED.sub(_unescape_one, text.encode())


def _unescape_one(match: re.Match[bytes]) -> bytes:
    if match[1] is None:
        raise ValueError("a percent sign without a byte")
    return bytes.fromhex(match[1].decode())


def cut(text: str, size: int) -> Iterator[str]:
    """Cut an escaped text into pieces of at most so many bytes, never within a character or an escaped byte."""
    begin = length = index = 0
    while index < len(text):
        step = 3 if text[index] == "%" else 1
        more = step if step == 3 else len(text[index].encode())
        if length + more > size:
            yield text[begin:index]
            begin, length = index, 0
        length += more
        index += step
    yield text[begin:]


class Packer:
    """Makes messages of lines: as many lines as fit into one, or one line in several."""

    __slots__ = ("_lines", "_number", "_pieces", "_size", "_waiting", "session", "to")

    def __init__(self, session: str, size: int = MAX_TEXT) -> None:
        self.session = session
        self.to = NOBODY
        """The other side's session, as soon as it is known."""
        self._size = size - len(str(Piece(session, session, 10**15 - 1, Kind.WHOLE, "%20")))
        self._number = 0
        self._lines: deque[str] = deque()
        self._pieces: deque[tuple[Kind, str]] = deque()
        self._waiting = 0

    @property
    def waiting(self) -> int:
        """Bytes that were put and are not in a message yet, as they will be written."""
        return self._waiting

    def put(self, data: bytes) -> None:
        """Take whole lines, with their ends."""
        for line in data.split(b"\n"):
            if line := line.removesuffix(b"\r"):
                self._lines.append(escape(line))
                self._waiting += len(self._lines[-1].encode())

    def take(self) -> str | None:
        """The next message, if there is something to be sent."""
        if not self._pieces and not self._fill():
            return None
        kind, text = self._pieces.popleft()
        return self._write(kind, text)

    def bye(self, reason: str) -> str:
        """The last message."""
        return self._write(Kind.BYE, next(cut(escape(reason.encode()), self._size)))

    def _fill(self) -> bool:
        if not self._lines:
            return False
        text = self._lines.popleft()
        self._waiting -= len(text.encode())
        first, *rest = cut(text, self._size)
        if rest:
            self._pieces.append((Kind.FIRST, first))
            self._pieces.extend((Kind.MIDDLE, each) for each in rest[:-1])
            self._pieces.append((Kind.LAST, rest[-1]))
            return True
        length = len(text.encode())
        while self._lines and length + 3 + len(self._lines[0].encode()) <= self._size:
            line = self._lines.popleft()
            self._waiting -= len(line.encode())
            length += 3 + len(line.encode())
            text = f"{text}%0A{line}"
        self._pieces.append((Kind.WHOLE, text))
        return True

    def _write(self, kind: Kind, text: str) -> str:
        if text.endswith(" "):
            text = f"{text[:-1]}%20"
        number, self._number = self._number, self._number + 1
        return str(Piece(self.session, self.to, number, kind, text))


class Unpacker:
    """Puts lines together again. What is lost or comes twice loses at most the line that it belongs to."""

    __slots__ = ("_next", "_partial")

    def __init__(self) -> None:
        self._next = 0
        self._partial: bytes | None = None

    def take(self, piece: Piece) -> bytes:
        """Return the lines that are complete with this message, with their ends."""
        if piece.number < self._next:
            return b""
        if piece.number > self._next:
            self._partial = None
        self._next = piece.number + 1
        try:
            data = unescape(piece.text)
        except ValueError:
            self._partial = None
            return b""
        return self._lines(piece.kind, data)

    def _lines(self, kind: Kind, data: bytes) -> bytes:
        before, self._partial = self._partial, None
        match kind:
            case Kind.WHOLE:
                return b"".join(line + b"\r\n" for line in data.split(b"\n"))
            case Kind.FIRST:
                self._partial = data
            case Kind.MIDDLE if before is not None and len(before) + len(data) <= MAX_LINE:
                self._partial = before + data
            case Kind.LAST if before is not None and len(before) + len(data) <= MAX_LINE:
                return before + data + b"\r\n"
        return b""
