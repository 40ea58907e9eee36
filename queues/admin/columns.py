"""Columns of lists and lines of pages that show one expression of a row, and the forms that many of them share."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from django.contrib import admin
from django.utils.html import format_html
from django.utils.safestring import SafeString

from queues.formats.times import clock, relative, zone
from queues.permissions.addresses import queue_words


def column(description: str, shown: Callable[[Any], object], **display: Any) -> Any:
    """A column, or a line of a page, that shows `shown` of the row; `display` is for `django.contrib.admin.display`."""
    return admin.display(description=description, **display)(lambda model_admin, row: shown(row))


def state_name(name: str) -> str:
    """What pages call a state of messages: the word for those that consumers have is the same everywhere."""
    return name.replace("leased", "unacknowledged")


def queue_shown(name: str) -> SafeString:
    """A queue as people call it, with its name as the title where that is another."""
    words = queue_words(name)
    return format_html("{}", name) if words == name else format_html('<span title="{}">{}</span>', name, words)


def anchor(address: str | None, text: object) -> SafeString:
    """The text as a link; as mere text without an address."""
    return format_html('<a href="{}">{}</a>', address, text) if address else format_html("{}", text)


def time_ago(at: datetime | None) -> SafeString:
    """How long ago a moment is, with the exact one as its title."""
    if at is None:
        return format_html("{}", "-")
    exact = at.isoformat(timespec="seconds")
    return format_html(
        '<time datetime="{}" title="{} {}">{}</time>', exact, clock(at), zone(), relative(at, datetime.now(UTC))
    )


def moment(at: datetime | None) -> SafeString:
    """A time, and how long ago it is."""
    return time_ago(at) if at is None else format_html("{}, {}", clock(at), time_ago(at))


def short_hash(hash_hex: str) -> SafeString:
    """The first digits of a hash, with all of them as its title."""
    return format_html('<code title="{}">{}…</code>', hash_hex, hash_hex[:12])
