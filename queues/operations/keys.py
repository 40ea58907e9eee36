"""Making, rotating and revoking API keys. The key itself is shown once; the table holds a digest."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

from django.db import IntegrityError, transaction
from django.db.models import Q

from queues.config.settings import settings
from queues.engine.api import key_digest
from queues.errors import BrokerError
from queues.formats.texts import is_storable, shown
from queues.models import ApiKey

#: The fields of a key that say what it may do.
SCOPES = ("protocols", "publish", "consume", "manage")
PROTOCOLS = ("blipmq", "overhop", "peerbus", "sspq", "hydra", "http")
HINT = 4
#: Characters under which a key that was given is called weak.
SHORTEST_KEY = 16
MAX_NAME = 100
MAX_PATTERN = 255
#: The longest time for which the value before a rotation can be accepted.
MAX_GRACE = timedelta(days=366)


class KeyExists(BrokerError, ValueError):
    """There is a key of this name, or with this value."""


class InvalidKey(BrokerError, ValueError):
    """A key cannot be made like this; the text says why."""


def digests(key: str) -> list[str]:
    """The digests that a key may be stored by: with each pepper, that of new keys first."""
    return [key_digest(key, pepper) for pepper in settings.BROKER_KEY_PEPPERS]


def digest(key: str) -> str:
    """The digest of a new key."""
    return digests(key)[0]


def weakness(key: str) -> str | None:
    """The weakness of a key that is accepted nevertheless; None when it is long enough."""
    if len(key) >= SHORTEST_KEY:
        return None
    return f"The key has {len(key)} characters: fewer than {SHORTEST_KEY} can be guessed."


def create_key(
    name: str,
    key: str | None = None,
    protocols: Iterable[str] = (),
    publish: Iterable[str] = ("*",),
    consume: Iterable[str] = ("*",),
    manage: Iterable[str] = (),
) -> tuple[ApiKey, str]:
    """Make a key; returns its row and the key, which cannot be read again.

    Without `key` a random one of 256 bits is made. Patterns are globs over names of queues and topics; no
    protocols means any. Raises KeyExists when the name or the value is taken, InvalidKey for a name, value,
    protocol or pattern that cannot be.
    """
    row, text = new_key(name, key)
    _grant(row, {"protocols": protocols, "publish": publish, "consume": consume, "manage": manage})
    try:
        with transaction.atomic():
            row.save(force_insert=True)
    except IntegrityError as error:
        raise KeyExists(f"There is an API key named {name!r}, or one with this value.") from error
    row.refresh_from_db()
    return row, text


def new_key(name: str, key: str | None = None) -> tuple[ApiKey, str]:
    """Make a key as `create_key` does, without its rights, and without saving its row."""
    text = _value(key)
    if not 0 < len(name) <= MAX_NAME or not is_storable(name):
        raise InvalidKey(f"A key's name has 1 to {MAX_NAME} characters.")
    row = ApiKey(name=name, digest=digest(text), hint=_hint(text))
    _refuse_taken(row, digests(text))
    return row, text


def _value(given: str | None) -> str:
    """The value that was given, or a random one."""
    if given == "":
        raise InvalidKey("A key must not be empty.")
    return secrets.token_urlsafe(32) if given is None else given


def grant_key(name: str, **scopes: Iterable[str]) -> ApiKey:
    """Give a key other `SCOPES`, those that are named. Raises ApiKey.DoesNotExist, or InvalidKey for a key that is
    revoked or a scope that cannot be."""
    with transaction.atomic():
        row = ApiKey.objects.select_for_update().get(name=name)
        if row.revoked_at is not None:
            raise InvalidKey(f"The key {name!r} is revoked.")
        _grant(row, scopes)
        row.save(update_fields=list(scopes))
    return row


def _grant(row: ApiKey, scopes: Mapping[str, Iterable[str]]) -> None:
    for name, given in scopes.items():
        setattr(row, name, (known_protocols if name == "protocols" else valid_patterns)(given))


def list_keys() -> list[ApiKey]:
    """All keys, revoked ones too, by name, with their last log-ins."""
    return list(ApiKey.objects.select_related("use"))


def rotate_key(name: str, grace: timedelta, key: str | None = None) -> tuple[ApiKey, str]:
    """Give a key another value; returns its row and the value. The one before is accepted for `grace` more.

    Connections that were made with either go on. A value from before that is no longer accepted. Raises
    ApiKey.DoesNotExist, InvalidKey for a key that is revoked, or a value or time that cannot be, or KeyExists when the
    value is taken.
    """
    if not timedelta(0) <= grace <= MAX_GRACE:
        raise InvalidKey(f"The value before can be accepted for 0 to {MAX_GRACE.days} days.")
    text = _value(key)
    with transaction.atomic():
        row = ApiKey.objects.select_for_update().get(name=name)
        if row.revoked_at is not None:
            raise InvalidKey(f"The key {name!r} is revoked.")
        _refuse_taken_value(digests(text))
        row.old_digest, row.old_until = (row.digest, datetime.now(UTC) + grace) if grace else (None, None)
        row.digest, row.hint = digest(text), _hint(text)
        row.save(update_fields=["digest", "hint", "old_digest", "old_until"])
    return row, text


def revoke_key(name: str) -> ApiKey:
    """Revoke a key: its live connections end within a second. Raises ApiKey.DoesNotExist."""
    row = ApiKey.objects.get(name=name)
    if row.revoked_at is None:
        row.revoked_at = datetime.now(UTC)
        row.save(update_fields=["revoked_at"])
    return row


def _refuse_taken(row: ApiKey, known_as: list[str]) -> None:
    same = ApiKey.objects.filter(name=row.name).first()
    if same is not None and same.revoked_at is not None:
        raise KeyExists(f"There was an API key named {row.name!r}, now revoked; its name stays taken.")
    if same is not None:
        raise KeyExists(f"There is an API key named {row.name!r}.")
    _refuse_taken_value(known_as)


def _refuse_taken_value(known_as: list[str]) -> None:
    if ApiKey.objects.filter(Q(digest__in=known_as) | Q(old_digest__in=known_as)).exists():
        raise KeyExists("There is an API key with this value.")


def _hint(text: str) -> str:
    """The beginning of a key, if that gives little of it away."""
    return text[:HINT] if len(text) > 3 * HINT and is_storable(text[:HINT]) else ""


def known_protocols(given: Iterable[str]) -> list[str]:
    """Names of protocols, each once. Raises InvalidKey."""
    protocols = list(dict.fromkeys(given))
    for protocol in protocols:
        if protocol not in PROTOCOLS:
            raise InvalidKey(f"{shown(protocol)} is no protocol; there are {', '.join(PROTOCOLS)}.")
    return protocols


def valid_patterns(given: Iterable[str]) -> list[str]:
    """Globs over names of queues and topics, each once. Raises InvalidKey."""
    patterns = list(dict.fromkeys(given))
    for pattern in patterns:
        if not 0 < len(pattern) <= MAX_PATTERN or not is_storable(pattern):
            raise InvalidKey(f"{shown(pattern)} is no pattern: a pattern has 1 to {MAX_PATTERN} characters.")
    return patterns
