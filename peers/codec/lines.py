"""Frames over a stream of bytes, such as a pipe: each is a line (docs/protocols/peerbus.md, "Lines"). No I/O."""

from collections.abc import Callable, Iterator

from peers.codec.envelope import MAX_FRAME
from peers.errors import LineTooLong


def line(frame: bytes) -> bytes:
    """Return a frame as a line; line feeds, which can only stand between tokens, become spaces."""
    return frame.replace(b"\n", b" ") + b"\n"


def frames_of(readline: Callable[[int], bytes]) -> Iterator[bytes]:
    """Yield the lines of a stream without their line feeds; empty ones are skipped, and the last one needs none.

    `readline` is that of a binary file. Raises LineTooLong, after which nothing can be decoded.
    """
    while text := readline(MAX_FRAME + 1):
        frame = text.removesuffix(b"\n")
        if len(frame) > MAX_FRAME:
            raise LineTooLong(f"a line has more than {MAX_FRAME} bytes")
        if frame.strip():
            yield frame
