"""Options of the engine: one frozen object, read from Django's settings in one place."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any


def _set_by(setting: str, default: Any) -> Any:
    return field(default=default, metadata={"setting": setting})


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Sizes are bytes, times seconds."""

    conninfo: str
    #: With any of which the digest of an API key may have been made.
    peppers: tuple[str, ...] = _set_by("BROKER_KEY_PEPPERS", ())
    name: str = "engine"
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)
    prefetch: int = _set_by("BROKER_PREFETCH", 10_000)
    prefetch_bytes: int = _set_by("BROKER_PREFETCH_BYTES", 16 << 20)
    prefetch_total_bytes: int = _set_by("BROKER_PREFETCH_TOTAL_BYTES", 128 << 20)
    pending_bytes: int = _set_by("BROKER_PENDING_BYTES", 32 << 20)
    #: Messages from which on those that are published together are stored as a segment; 0: never.
    segment_messages: int = _set_by("BROKER_SEGMENT_MESSAGES", 0)
    #: Seconds for which one of the tables that take turns is written to.
    turn: float = _set_by("BROKER_ROTATION_SECONDS", 10.0)
    most_unsettled: int = 10_000
    publish_timeout: float = _set_by("BROKER_PUBLISH_TIMEOUT", 60.0)
    stall_timeout: float = _set_by("BROKER_STALL_TIMEOUT", 5.0)
    database_timeout: float = _set_by("BROKER_DATABASE_TIMEOUT", 15.0)
    max_attempts: int = _set_by("BROKER_DEFAULT_MAX_ATTEMPTS", 5)
    retry_backoff: float = _set_by("BROKER_DEFAULT_RETRY_BACKOFF", 1.0)
    ack_timeout: float = _set_by("BROKER_DEFAULT_ACK_TIMEOUT", 60.0)
    subscription_max_attempts: int = _set_by("BROKER_BLIPMQ_MAX_ATTEMPTS", 8)
    subscription_retry_backoff: float = _set_by("BROKER_BLIPMQ_RETRY_BACKOFF", 0.1)
    #: Subscriptions that an API key may make.
    subscriptions_per_key: int = _set_by("BROKER_BLIPMQ_MAX_SUBSCRIPTIONS_PER_KEY", 100_000)
    #: QoS 0 messages and their bytes held for one subscription, and the largest one that goes to another node.
    transient_messages: int = _set_by("BROKER_BLIPMQ_QOS0_MESSAGES", 1024)
    transient_bytes: int = _set_by("BROKER_BLIPMQ_QOS0_BYTES", 4 << 20)
    transient_forward_bytes: int = _set_by("BROKER_BLIPMQ_QOS0_FORWARD_BYTES", 5600)
    archive_days: int = _set_by("BROKER_ARCHIVE_DAYS", 30)
    idle_subscription_days: int = _set_by("BROKER_IDLE_SUBSCRIPTION_DAYS", 0)
    #: Days for which the end of an idle subscription is told before.
    idle_subscription_notice: int = _set_by("BROKER_IDLE_SUBSCRIPTION_NOTICE_DAYS", 0)
    #: Whether this process serves mailboxes; most letters out to one of them; whether any key may take a free name and
    #: acknowledge any letter; whether letters are recorded in the audit chain; seconds in which an id counts as seen.
    mailboxes: bool = False
    mailbox_window: int = _set_by("BROKER_PEERBUS_WINDOW", 10_000)
    #: Names of peers that an API key may make, 0: any number; bytes sent by its peers that may wait.
    most_names: int = _set_by("BROKER_PEERBUS_NAMES_PER_KEY", 10_000)
    key_pending_bytes: int = _set_by("BROKER_PEERBUS_PENDING_BYTES_PER_KEY", 16 << 20)
    relaxed_mailboxes: bool = _set_by("BROKER_PEERBUS_RELAXED", False)
    audit_letters: bool = _set_by("BROKER_PEERBUS_AUDIT", True)
    dedupe_window: float = 30 * 86_400.0
    #: The upkeep of the audit chains, every `audit_interval` seconds, in a thread; None: none.
    look_after_audit: Callable[[], None] | None = None
    #: Their anchoring, in a thread, when the engine has written its last row and stops.
    anchor_audit: Callable[[], None] | None = None
    audit_interval: float = _set_by("BROKER_AUDIT_ANCHOR_INTERVAL", 60.0)
    #: Called once a minute, in a thread, to record the queues' counts; None: no samples.
    take_sample: Callable[[], None] | None = None


def options_from_settings(name: str) -> EngineOptions:
    """The options that Django's settings give; `name` is that of the process."""
    from psycopg.conninfo import make_conninfo

    from queues.audit.upkeep import anchor_at_stop, look_after
    from queues.config.settings import settings
    from queues.database.parameters import engine_parameters
    from queues.store.samples import Sampler

    named = {one.name: getattr(settings, one.metadata["setting"]) for one in fields(EngineOptions) if one.metadata}
    return EngineOptions(
        **named,
        conninfo=make_conninfo(**engine_parameters()),
        name=name,
        dedupe_window=settings.BROKER_PEERBUS_DEDUPE_DAYS * 86_400.0,
        look_after_audit=look_after,
        anchor_audit=anchor_at_stop,
        take_sample=Sampler(),
    )
