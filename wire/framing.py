"""What the decoders of all protocols have in common: frames cut out of a stream of bytes. No I/O."""

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

F = TypeVar("F")


class StreamError(ValueError):
    """The bytes are not those of the protocol: the connection has to be closed."""


class FrameReader(ABC, Generic[F]):
    """Cuts received bytes into frames. Feed it what the socket gave, in order.

    `error` is None until the stream breaks a rule, and then says which; from then on `feed` returns nothing and the
    connection has to be closed. The kept part of an incomplete frame is never longer than its declared length,
    and each byte of it is copied a constant number of times however small the pieces.
    """

    def __init__(self, limit: int) -> None:
        """`limit` is the largest size that a frame may declare, in bytes."""
        self.error: str | None = None
        self._limit = limit
        self._rest = bytearray()
        self._need = 0

    @property
    def pending(self) -> int:
        """Bytes held of a frame that is not complete; not 0 at end of stream means it was cut off."""
        return len(self._rest)

    @property
    def rest(self) -> bytes:
        """The bytes of a frame that is not complete."""
        return bytes(self._rest)

    @property
    def expected(self) -> int:
        """Bytes that the frame which is not complete has in all, as far as known; 0 when there is none."""
        return self._need if self._rest else 0

    def feed(self, data: bytes) -> list[F]:
        """Return the frames that `data` completes, in order; then look at `error`."""
        found: list[F] = []
        if self.error is not None:
            return found
        if self._rest:
            if len(self._rest) + len(data) < self._need:
                self._rest += data
                return found
            data = b"".join((self._rest, data))
            self._rest = bytearray()
        try:
            at = self._cut(data, found)
            if at < len(data):
                rest = data[at:] if at else data
                self._need = self._size(rest)
                self._rest += rest
        except StreamError as error:
            self.error = str(error)
        return found

    @abstractmethod
    def _cut(self, data: bytes, found: list[F]) -> int:
        """Add the frames that are whole and keep the rules; return where the last one ends. May raise StreamError."""

    @abstractmethod
    def _size(self, rest: bytes) -> int:
        """Return how many bytes the frame has that begins like this, as far as known; raise StreamError as early as
        its bytes allow."""
