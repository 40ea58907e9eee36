"""Frames over a stream of bytes, such as a pipe: each is a line (docs/protocols/peerbus.md, "Lines"). No I/O."""

from peers.codec.envelope import MAX_FRAME
from peers.errors import LineTooLong


def line(frame: bytes) -> bytes:
    """Return a frame as a line; line feeds, which can only stand between tokens, become spaces."""
    return frame.replace(b"\n", b" ") + b"\n"


class LineDecoder:
    """Takes a stream of bytes in any pieces and gives its lines, without their line feeds; empty ones are skipped."""

    def __init__(self) -> None:
        self._pending = bytearray()
        #: Set when a line was too long: nothing more is decoded then.
        self.error: LineTooLong | None = None

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that are complete now; then look at `error`."""
        if self.error is not None:
            return []
        *ends, rest = data.split(b"\n")
        lines = []
        for end in ends:
            if not self._take(end):
                break
            lines.append(bytes(self._pending))
            self._pending.clear()
        else:
            self._take(rest)
        return [each for each in lines if each.strip()]

    def finish(self) -> list[bytes]:
        """The stream has ended: return its last line, if that had no line feed."""
        return self.feed(b"\n")

    def _take(self, piece: bytes) -> bool:
        if len(self._pending) + len(piece) > MAX_FRAME:
            self.error = LineTooLong(f"a line has more than {MAX_FRAME} bytes")
            self._pending.clear()
            return False
        self._pending += piece
        return True
