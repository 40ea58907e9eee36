"""The copy of the anchors outside the database, out of reach of a writer of the database."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from queues.audit.anchor import Anchor, parse_line
from queues.audit.errors import InvalidAnchorFile
from queues.config.settings import settings

#: The beginning of every line.
BEGINNING = b'{"chain":'


class AnchorFile:
    """A file of JSON lines, one an anchor, that only grows."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def default(cls) -> AnchorFile:
        """This installation's own: DATA_DIR/audit/anchors.jsonl."""
        return cls(Path(settings.DATA_DIR) / "audit" / "anchors.jsonl")

    def append(self, lines: Iterable[bytes]) -> None:
        """Add lines, all on disk when this returns. Raises OSError."""
        text = b"".join(lines)
        if not text:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            size = os.fstat(handle).st_size
            if size and os.pread(handle, 1, size - 1) != b"\n":
                text = b"\n" + text  # a crash has left half a line, which stays one of its own
            while text:
                text = text[os.write(handle, text) :]
            os.fsync(handle)
        finally:
            os.close(handle)

    def read(self) -> Iterator[Anchor]:
        """Every anchor in it. A line that a crash has cut off is passed over.

        Raises InvalidAnchorFile for a line that is anything else, or OSError.
        """
        with self.path.open("rb") as stream:
            for number, line in enumerate(stream, 1):
                anchor = parse_line(line)
                if anchor is not None:
                    yield anchor
                elif not _is_cut_off(line.rstrip()):
                    raise InvalidAnchorFile(f"{self.path}, line {number}")


def _is_cut_off(line: bytes) -> bool:
    return not line.endswith(b"}") and line[: len(BEGINNING)] == BEGINNING[: len(line)]
