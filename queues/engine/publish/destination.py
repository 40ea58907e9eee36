"""The destination of a publish: the name of a queue or of a topic."""

from __future__ import annotations

from typing import NamedTuple


class Destination(NamedTuple):
    """`kind` is "queue" or "topic", `name` its exact bytes, UTF-8."""

    kind: str
    name: bytes

    @classmethod
    def parse(cls, text: str) -> Destination:
        """Read "queue:NAME" or "topic:NAME"; a bare NAME is a queue's. Raises ValueError when the name is empty."""
        kind, colon, name = text.partition(":")
        if not colon or kind not in ("queue", "topic"):
            kind, name = "queue", text
        if not name:
            raise ValueError(f"{text!r} names no queue and no topic")
        return cls(kind, name.encode())

    def __str__(self) -> str:
        return f"{self.kind}:{self.name.decode('utf-8', 'replace')}"
