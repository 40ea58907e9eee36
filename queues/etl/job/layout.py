"""Names of directories and files in the output. Pure.

`queue=NAME` must come back as NAME when a reader decodes it, and as text: Spark takes a directory `queue=007` for the
number 7 and decodes each %XX as one character. So ASCII that is not plain is percent-encoded, other characters stay
as they are, and a name that looks like a number or a time has its first ASCII character encoded. That does not help
with readers that decode first, and with Spark for times and for names of digits that are not ASCII: docs/reading.md has
the lines that read text.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

MESSAGES, AUDIT, LIVE = "messages", "audit", "live"
RUNS, STAGING = "_runs", "_staging"

#: Bytes of a directory's name, which file systems bound at 255.
MAX_NAME = 200

_PLAIN = re.compile(r"[A-Za-z0-9_.~@+,-]|[^\x00-\x7f]")
#: Names that readers would take for a number, a date, a time or null; Java has digits of every script, and 0x1p3.
_LOOKS_LIKE_A_VALUE = re.compile(
    r"[-+.\d][-+.:\dTZEDFL _]*|[-+]?0x[\da-f.]*(p[-+]?\d*)?[fdl]?|[-+]?(nan|inf|infinity)|null|true|false|epoch|now"
    r"|today|tomorrow|yesterday|__HIVE_DEFAULT_PARTITION__",
    re.IGNORECASE,
)


def encoded(name: str) -> str:
    """A name as a part of a path. Longer ones are cut, and end in `~` and sixteen digits of their SHA-256."""
    text = "".join(character if _PLAIN.match(character) else f"%{ord(character):02X}" for character in name)
    if _LOOKS_LIKE_A_VALUE.fullmatch(name) and not text.startswith("%"):
        text = re.sub(r"[\x00-\x7f]", lambda found: f"%{ord(found[0]):02X}", text, count=1)
    if len(text.encode()) <= MAX_NAME:
        return text
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    cut = text.encode()[: MAX_NAME - 17].decode(errors="ignore")
    return f"{re.sub('%[0-9A-F]?$', '', cut)}~{digest}"


def unknown(queue: int) -> str:
    """The name for a queue whose name is unknown. Names that begin with _ are the system's."""
    return f"_deleted-{queue}"


@dataclass(frozen=True, slots=True)
class Part:
    """A file as Spark has written it below the staging directory of a table."""

    day: str
    owner: int
    number: str

    @classmethod
    def parse(cls, path: str) -> Part | None:
        """The partition values in a staged file's path. None: not a staged file."""
        match = re.fullmatch(r"dt=([-0-9]+)/owner=(-?\d+)/part-(\d+)-[^/]*?(?:\.c(\d+))?\.[a-z.]*parquet", path)
        if match is None:
            return None
        day, owner, part, file = match.groups()
        return cls(day, int(owner), f"{part}-{file or '000'}")

    def final(self, table: str, column: str, name: str, run: int) -> str:
        """The file's final path in the output. The same run gives the same path."""
        return f"{table}/dt={self.day}/{column}={encoded(name)}/run-{run:06d}-{self.owner}-{self.number}.parquet"


def compacted(directory: str, run: int, number: int) -> str:
    """The path of a merged file."""
    return f"{directory}/run-{run:06d}-merged-{number:05d}.parquet"


def day_of(path: str) -> str:
    """The day in a path of the output."""
    match = re.search(r"/dt=([-0-9]+)/", path)
    return match[1] if match else ""
