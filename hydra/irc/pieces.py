"""Hydra's lines in the texts of private messages. No I/O.

    HY1 5f3c09a1 0 0 . KNOCK 12345 probe@5f3c09a1b2c3d4e5
    HY1 90b1c2d3 5f3c09a1 0 . MEET 12345 1804289383%0AWELCOME 12345
    HY1 90b1c2d3 5f3c09a1 1 < RECV 17 :alice!u@h PRIVMSG #c :a line that does not fit
    HY1 90b1c2d3 5f3c09a1 2 >  into one message

After the mark: the sender's session, drawn for each link; the receiver's, or 0 while it is unknown; a number that
counts from 0; the kind; text. Whole lines (`.`) have `%0A` between them; a longer line comes in pieces, the first `<`,
the last `>`, those between `-`. `!` ends the link, with a reason.

`%XX` is a byte that not every server lets through: controls, a space at the end, bytes that are not UTF-8, and the
percent sign. Characters are not split.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from enum import StrEnum
from typing import Final, NamedTuple

MARK: Final = "HY1"

#: Bytes of a private message: the rest of a line's 512 after `:nick!user@host PRIVMSG nick :`.
MAX_TEXT: Final = 350

#: Bytes of a line put together again: twice Hydra's limit.
MAX_LINE: Final = 4096

#: The session of a side that is unknown.
UNKNOWN: Final = "0"

_FORM: Final = re.compile(r"HY1 ([0-9a-f]{8}|0) ([0-9a-f]{8}|0) ([0-9]{1,15}) ([.<>!-]) (.*)", re.DOTALL | re.ASCII)
_ESCAPED: Final = re.compile(rb"%([0-9A-F]{2})?")
_UNSAFE: Final = re.compile("[\x00-\x1f\x7f-\x9f%\udc80-\udcff]")


class PieceKind(StrEnum):
    """The kind of a message."""

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
    kind: PieceKind
    text: str
    """Escaped."""

    def __str__(self) -> str:
        return f"{MARK} {self.session} {self.to} {self.number} {self.kind} {self.text}"


def parse_piece(text: str) -> Piece | None:
    """Read a private message; None if it is not Hydra's."""
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    return Piece(match[1], match[2], int(match[3]), PieceKind(match[4]), match[5])


def escape(line: bytes) -> str:
    """Escape bytes for all servers, except a space at the end."""
    return _UNSAFE.sub(_escape_one, line.decode(errors="surrogateescape"))


def _escape_one(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode(errors="surrogateescape"))


def unescape(text: str) -> bytes:
    """Undo `escape`. Raises ValueError."""
    return _ESCAPED.sub(_unescape_one, text.encode())


def _unescape_one(match: re.Match[bytes]) -> bytes:
    if match[1] is None:
        raise ValueError("a percent sign without a byte")
    return bytes.fromhex(match[1].decode())


def cut(text: str, size: int) -> Iterator[str]:
    """Split an escaped text into pieces of at most `size` bytes, never within a character or an escaped byte."""
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


class PiecePacker:
    """Packs lines into messages: several lines in one, or one line in several."""

    def __init__(self, session: str) -> None:
        self.session = session
        self.to = UNKNOWN
        """The other side's session, once it is known."""
        self._size = MAX_TEXT - len(str(Piece(session, session, 10**15 - 1, PieceKind.WHOLE, "%20")))
        self._number = 0
        self._lines: deque[str] = deque()
        self._pieces: deque[tuple[PieceKind, str]] = deque()
        #: Escaped bytes that are not in a message yet.
        self.waiting = 0

    def address(self, session: str) -> None:
        """The other side has this session."""
        self.to = session

    def put(self, data: bytes) -> None:
        """Add whole lines, with their ends."""
        for line in data.split(b"\n"):
            if line := line.removesuffix(b"\r"):
                self._lines.append(escape(line))
                self.waiting += len(self._lines[-1].encode())

    def take(self) -> str | None:
        """The next message, or None."""
        if not self._pieces and not self._fill():
            return None
        kind, text = self._pieces.popleft()
        return self._write(kind, text)

    def bye(self, reason: str) -> str:
        """The message that ends the link."""
        return self._write(PieceKind.BYE, next(cut(escape(reason.encode()), self._size)))

    def _fill(self) -> bool:
        if not self._lines:
            return False
        text = self._lines.popleft()
        self.waiting -= len(text.encode())
        first, *rest = cut(text, self._size)
        if rest:
            self._pieces.append((PieceKind.FIRST, first))
            self._pieces.extend((PieceKind.MIDDLE, each) for each in rest[:-1])
            self._pieces.append((PieceKind.LAST, rest[-1]))
            return True
        length = len(text.encode())
        while self._lines and length + 3 + len(self._lines[0].encode()) <= self._size:
            line = self._lines.popleft()
            self.waiting -= len(line.encode())
            length += 3 + len(line.encode())
            text = f"{text}%0A{line}"
        self._pieces.append((PieceKind.WHOLE, text))
        return True

    def _write(self, kind: PieceKind, text: str) -> str:
        if text.endswith(" "):
            text = f"{text[:-1]}%20"
        number, self._number = self._number, self._number + 1
        return str(Piece(self.session, self.to, number, kind, text))


class PieceUnpacker:
    """Puts lines together again. A lost or repeated message costs at most its own line."""

    def __init__(self) -> None:
        self._next = 0
        self._partial: bytes | None = None

    def take(self, piece: Piece) -> bytes:
        """Return the lines that a message completes, with their ends."""
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

    def _lines(self, kind: PieceKind, data: bytes) -> bytes:
        before, self._partial = self._partial, None
        match kind:
            case PieceKind.WHOLE:
                return b"".join(line + b"\r\n" for line in data.split(b"\n"))
            case PieceKind.FIRST:
                self._partial = data
            case PieceKind.MIDDLE if before is not None and len(before) + len(data) <= MAX_LINE:
                self._partial = before + data
            case PieceKind.LAST if before is not None and len(before) + len(data) <= MAX_LINE:
                return before + data + b"\r\n"
        return b""
