"""Options of the engine: one frozen object, read from Django's settings in one place."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Sizes are bytes, times seconds."""

    conninfo: str
    #: With any of which the digest of an API key may have been made.
    peppers: tuple[str, ...] = ()
    name: str = "engine"
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)
    prefetch: int = 10_000
    prefetch_bytes: int = 16 << 20
    prefetch_total_bytes: int = 128 << 20
    pending_bytes: int = 32 << 20
    #: Messages from which on those that are published together are stored as a segment; 0: never.
    segment_messages: int = 0
    #: Seconds for which one of the tables that take turns is written to.
    turn: float = 10.0
    most_unsettled: int = 10_000
    publish_timeout: float = 60.0
    stall_timeout: float = 5.0
    database_timeout: float = 15.0
    max_attempts: int = 5
    retry_backoff: float = 1.0
    ack_timeout: float = 60.0
    subscription_max_attempts: int = 8
    subscription_retry_backoff: float = 0.1
    #: Subscriptions that an API key may make.
    subscriptions_per_key: int = 100_000
    #: QoS 0 messages and their bytes held for one subscription, and the largest one that goes to another node.
    transient_messages: int = 1024
    transient_bytes: int = 4 << 20
    transient_forward_bytes: int = 5600
    archive_days: int = 30
    idle_subscription_days: int = 0
    #: Whether this process serves mailboxes; most letters out to one of them; whether any key may take a free name and
    #: acknowledge any letter; whether letters are recorded in the audit chain; seconds in which an id counts as seen.
    mailboxes: bool = False
    mailbox_window: int = 10_000
    #: Names of peers that an API key may make, 0: any number; bytes sent by its peers that may wait.
    most_names: int = 10_000
    key_pending_bytes: int = 16 << 20
    relaxed_mailboxes: bool = False
    audit_letters: bool = True
    dedupe_window: float = 30 * 86_400.0
    #: The upkeep of the audit chains, every `audit_interval` seconds, in a thread; None: none.
    look_after_audit: Callable[[], None] | None = None
    #: Their anchoring, in a thread, when the engine has written its last row and stops.
    anchor_audit: Callable[[], None] | None = None
    audit_interval: float = 60.0
    #: Called once a minute, in a thread, to record the queues' counts; None: no samples.
    take_sample: Callable[[], None] | None = None


def options_from_settings(name: str) -> EngineOptions:
    """The options that Django's settings give; `name` is that of the process."""
    from psycopg.conninfo import make_conninfo

    from queues.audit.upkeep import anchor_at_stop, look_after
    from queues.database import engine_parameters
    from queues.samples import Sampler
    from queues.settings import settings

    return EngineOptions(
        conninfo=make_conninfo(**engine_parameters()),
        peppers=settings.BROKER_KEY_PEPPERS,
        name=name,
        prefetch=settings.BROKER_PREFETCH,
        prefetch_bytes=settings.BROKER_PREFETCH_BYTES,
        prefetch_total_bytes=settings.BROKER_PREFETCH_TOTAL_BYTES,
        pending_bytes=settings.BROKER_PENDING_BYTES,
        segment_messages=settings.BROKER_SEGMENT_MESSAGES,
        turn=settings.BROKER_ROTATION_SECONDS,
        publish_timeout=settings.BROKER_PUBLISH_TIMEOUT,
        stall_timeout=settings.BROKER_STALL_TIMEOUT,
        database_timeout=settings.BROKER_DATABASE_TIMEOUT,
        max_attempts=settings.BROKER_DEFAULT_MAX_ATTEMPTS,
        retry_backoff=settings.BROKER_DEFAULT_RETRY_BACKOFF,
        ack_timeout=settings.BROKER_DEFAULT_ACK_TIMEOUT,
        subscription_max_attempts=settings.BROKER_BLIPMQ_MAX_ATTEMPTS,
        subscription_retry_backoff=settings.BROKER_BLIPMQ_RETRY_BACKOFF,
        subscriptions_per_key=settings.BROKER_BLIPMQ_MAX_SUBSCRIPTIONS_PER_KEY,
        transient_messages=settings.BROKER_BLIPMQ_QOS0_MESSAGES,
        transient_bytes=settings.BROKER_BLIPMQ_QOS0_BYTES,
        transient_forward_bytes=settings.BROKER_BLIPMQ_QOS0_FORWARD_BYTES,
        archive_days=settings.BROKER_ARCHIVE_DAYS,
        idle_subscription_days=settings.BROKER_IDLE_SUBSCRIPTION_DAYS,
        mailbox_window=settings.BROKER_PEERBUS_WINDOW,
        most_names=settings.BROKER_PEERBUS_NAMES_PER_KEY,
        key_pending_bytes=settings.BROKER_PEERBUS_PENDING_BYTES_PER_KEY,
        relaxed_mailboxes=settings.BROKER_PEERBUS_RELAXED,
        audit_letters=settings.BROKER_PEERBUS_AUDIT,
        dedupe_window=settings.BROKER_PEERBUS_DEDUPE_DAYS * 86_400.0,
        look_after_audit=look_after,
        anchor_audit=anchor_at_stop,
        audit_interval=settings.BROKER_AUDIT_ANCHOR_INTERVAL,
        take_sample=Sampler(),
    )
