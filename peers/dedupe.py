"""The ids that were consumed lately, so that a message that comes again is not handed over again. No I/O."""

from typing import Final

DEFAULT_SIZE: Final = 10_000


class Dedupe:
    """Remembers up to `size` ids; when there are more it forgets the one that was used longest ago."""

    def __init__(self, size: int = DEFAULT_SIZE) -> None:
        """Raises ValueError for a size below 1."""
        if size < 1:
            raise ValueError(f"a dedupe cache holds one id or more, not {size}")
        self._size = size
        self._ids: dict[str, None] = {}  # in order of use

    def add(self, id: str) -> None:
        """Remember an id."""
        self._ids.pop(id, None)
        self._ids[id] = None
        if len(self._ids) > self._size:
            del self._ids[next(iter(self._ids))]

    def seen(self, id: str) -> bool:
        """Whether an id is remembered; it counts as used now."""
        if id not in self._ids:
            return False
        self.add(id)
        return True

    def __len__(self) -> int:
        return len(self._ids)
