"""Making and revoking API keys. The key itself is shown once; the table holds a digest."""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from django.conf import settings
from django.utils import timezone

from queues.engine.access import key_digest
from queues.models import ApiKey

PROTOCOLS = ("blipmq", "overhop", "peerbus", "sspq", "hydra", "http")
HINT = 4


class KeyExists(ValueError):
    """There is a key of this name, or with this value."""


def digest(key: str) -> str:
    """What is stored of a key."""
    return key_digest(key, settings.SECRET_KEY)


def create_key(
    name: str,
    key: str | None = None,
    protocols: Iterable[str] = (),
    publish: Iterable[str] = ("*",),
    consume: Iterable[str] = ("*",),
    manage: Iterable[str] = (),
) -> tuple[ApiKey, str]:
    """Make a key; returns its row and the key, which nobody can read again.

    Without `key` a random one of 256 bits is made. Patterns are globs over names of queues and topics; no
    protocols means any. Raises KeyExists when the name or the value is taken, ValueError for an empty value.
    """
    if key is not None and not key:
        raise ValueError("A key must not be empty.")
    text = key if key is not None else secrets.token_urlsafe(32)
    if ApiKey.objects.filter(name=name).exists():
        raise KeyExists(f"There is an API key named {name!r}.")
    if ApiKey.objects.filter(digest=digest(text)).exists():
        raise KeyExists("There is an API key with this value.")
    row = ApiKey.objects.create(
        name=name,
        digest=digest(text),
        hint=text[:HINT] if len(text) > 3 * HINT else "",
        protocols=list(protocols),
        publish=list(publish),
        consume=list(consume),
        manage=list(manage),
    )
    return row, text


def revoke_key(name: str) -> ApiKey:
    """Revoke a key: its live connections end within a second. Raises ApiKey.DoesNotExist."""
    row = ApiKey.objects.get(name=name)
    if row.revoked_at is None:
        row.revoked_at = timezone.now()
        row.save(update_fields=["revoked_at"])
    return row
