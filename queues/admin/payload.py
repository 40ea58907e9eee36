"""Payloads on pages: as JSON, as text, or as hexadecimal. Their bytes may be anything."""

from __future__ import annotations

import codecs
import json
import unicodedata
from typing import Any

from django.db.models import BinaryField, F, Func, IntegerField, Value
from django.http import HttpResponse
from django.utils.html import format_html
from msgpack import unpackb  # type: ignore[import-untyped]

from queues.formats.times import clock
from queues.models import Content, JobLogLine

#: Bytes of a payload that a page shows, and of one in hexadecimal.
MAX_SHOWN = 64 * 1024
MAX_HEX = 4 * 1024
PREVIEW = 60
#: Characters of a task's summary.
MAX_TASK = 1000


def head(length: int) -> Func:
    """The first bytes of a payload, which may be large."""
    return Func(F("payload"), Value(1), Value(length), function="substring", output_field=BinaryField())


def size() -> Func:
    """The bytes of a payload."""
    return Func(F("payload"), function="octet_length", output_field=IntegerField())


def readable(data: bytes, complete: bool = True) -> str | None:
    """The bytes as text, or None if they are none; with `complete` false the last character may be cut off.

    Characters without a shape of their own, such as those that turn the direction of writing, come out as escapes.
    """
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(data, final=complete)
    except UnicodeDecodeError:
        return None
    if any(unicodedata.category(c) == "Cc" and c not in "\t\n\r" for c in text):
        return None
    return "".join(c if c.isprintable() or c in "\t\n\r" else c.encode("unicode_escape").decode() for c in text)


def hexadecimal(data: bytes) -> str:
    """A dump: offset, sixteen bytes, and what is printable of them."""
    lines = []
    for start in range(0, len(data), 16):
        row = data[start : start + 16]
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{start:08x}  {row.hex(' '):<47}  {shown}")
    return "\n".join(lines)


def shown(head: bytes, size: int, content: int | None = None) -> tuple[str, str]:
    """A payload's kind and its text, given its first bytes, its size and its `Content`."""
    complete = len(head) == size
    if complete and content == Content.MSGPACK and (value := _msgpack(head, indent=2)) is not None:
        return "MessagePack", value
    if complete and content == Content.LETTER and (value := _json(head)) is not None:
        return "peerbus envelope", value
    if (text := readable(head, complete)) is None:
        part = head[:MAX_HEX]
        return f"hexadecimal{_of(len(part), size)}", hexadecimal(part)
    if complete and text[:1] in ("{", "[") and (value := _json(head)) is not None:
        return "JSON", value
    return f"text{_of(len(head), size)}", text


def preview(head: bytes, size: int, content: int | None = None) -> str:
    """One short line of a payload."""
    if len(head) == size and content == Content.MSGPACK and (value := _msgpack(head)) is not None:
        return value if len(value) <= PREVIEW else f"{value[:PREVIEW]}…"
    text = readable(head[:PREVIEW], len(head) == size)
    line = head[:PREVIEW].hex(" ")[: PREVIEW - 1] if text is None else " ".join(text.split())
    return f"{line}…" if size > PREVIEW or (text is None and len(head) > PREVIEW // 3) else line


def sender_shown(content: int | None, headers: Any) -> str:
    """The sender of a letter, by the name of its connection; "-" for other messages, or when it was not kept."""
    sender = headers.get("from") if content == Content.LETTER and isinstance(headers, dict) else None
    return str(sender) if sender is not None else "-"


def task_shown(content: int | None, headers: Any) -> str:
    """The call that a Celery task is, as its headers tell it; "-" for what is none."""
    if content != Content.CELERY or not isinstance(headers, dict) or "task" not in headers:
        return "-"
    arguments = ", ".join(str(headers[name]) for name in ("argsrepr", "kwargsrepr") if headers.get(name))
    more = [f"{name} {headers[name]}" for name in ("id", "retries", "eta", "expires", "origin") if headers.get(name)]
    return f"{headers['task']} {arguments}; {', '.join(more)}"[:MAX_TASK]


def as_file(name: str, data: bytes) -> HttpResponse:
    """Bytes as a file, which no browser takes for a page."""
    return HttpResponse(
        data,
        content_type="application/octet-stream",
        headers={"Content-Disposition": f'attachment; filename="{name}.bin"', "X-Content-Type-Options": "nosniff"},
    )


def log_shown(message: int) -> str:
    """The lines that workers have written about the message with this first id."""
    lines = JobLogLine.objects.filter(message_id=message).order_by("id").values_list("at", "line")
    text = "\n".join(f"{clock(at)} {line}" for at, line in lines)
    return format_html("<pre>{}</pre>", text) if text else "none"


def _msgpack(data: bytes, indent: int | None = None) -> str | None:
    """A MessagePack value as JSON, its bytes in hexadecimal; None if it is none."""
    try:
        return json.dumps(unpackb(data), indent=indent, ensure_ascii=True, default=lambda value: value.hex(" "))
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None


def _json(data: bytes) -> str | None:
    """JSON with its structure made visible; None if it is none."""
    try:
        return json.dumps(json.loads(data), indent=2, ensure_ascii=True)
    except (ValueError, RecursionError):
        return None


def _of(part: int, size: int) -> str:
    return f", {size:,} bytes" if part == size else f", the first {part:,} of {size:,} bytes"
