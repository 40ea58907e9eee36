"""Frames over a stream of bytes, such as a pipe: each is a line (docs/protocols/peerbus.md, "Lines"). No I/O."""

from itertools import takewhile

from peers.codec.envelope import MAX_FRAME
from peers.errors import LineTooLong


def line(frame: bytes) -> bytes:
    """Return a frame as a line; line feeds, which can only stand between tokens, become spaces."""
    return frame.replace(b"\n", b" ") + b"\n"


class LineDecoder:
    """Takes a stream of bytes in any pieces and gives its lines, without their line feeds; empty ones are skipped."""

    def __init__(self) -> None:
        self._pending = b""
        #: Set when a line was too long: nothing more is decoded then.
        self.error: LineTooLong | None = None

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that are complete now; then look at `error`."""
        if self.error is not None:
            return []
        *ends, self._pending = (self._pending + data).split(b"\n")
        lines = [*takewhile(_fits, ends)]
        if len(lines) < len(ends) or not _fits(self._pending):
            self.error = LineTooLong(f"a line has more than {MAX_FRAME} bytes")
            self._pending = b""
        return [each for each in lines if each.strip()]

    def finish(self) -> list[bytes]:
        """The stream has ended: return its last line, if that had no line feed."""
        return self.feed(b"\n")


def _fits(line: bytes) -> bool:
    return len(line) <= MAX_FRAME
