"""Every environment variable the project reads. ``brokersite.settings`` exposes each under the same name.

To add one, add one entry to the class it belongs to: that is all. ``manage.py settingsdoc`` then
writes it into ``docs/settings.md``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from brokersite.options import (
    Options,
    directory,
    file,
    flag,
    integer,
    networks,
    postgres_url,
    seconds,
    size,
    text,
    words,
)
from brokersite.secretfile import kept_secret

CHECKOUT = Path(__file__).resolve().parent.parent

MIB = 1024 * 1024


def _kept_secret_key(earlier: Mapping[str, Any]) -> str:
    return kept_secret(earlier["DATA_DIR"] / "secret_key", length=50)


class SiteOptions(Options):
    """The site and the database"""

    DATA_DIR = directory(
        CHECKOUT / ".data",
        "Where the embedded PostgreSQL, generated passwords and keys are kept.",
        default_text="`.data` in the checkout",
    )
    DATABASE_URL = postgres_url(
        "The PostgreSQL (14 to 18) that stores everything. Unset, an embedded one under `DATA_DIR` is joined "
        "or started.",
        default_text="the embedded PostgreSQL",
    )
    SECRET_KEY = text(
        _kept_secret_key,
        "The key Django signs sessions with. Several hosts of one site need the same.",
        maximum=1000,
        default_text="generated once, kept in `DATA_DIR/secret_key`",
    )
    DEBUG = flag(False, "Django's debug pages. Never on where others can reach the site.")
    ALLOWED_HOSTS = words(
        ("localhost", "127.0.0.1", "[::1]"), "Host names the site answers to, with commas between them."
    )


class ListenerOptions(Options):
    """The listeners"""

    BROKER_MAX_FRAME = size(
        16 * MIB,
        "The largest frame a client may send; a larger one closes its connection.",
        minimum=1024,
        maximum=1024 * MIB,
    )
    BROKER_MAX_CONNECTIONS = integer(
        10_000, "Connections a process accepts, over all its listeners.", minimum=1, maximum=1_000_000
    )
    BROKER_MAX_CONNECTIONS_PER_ADDRESS = integer(
        1000, "Connections a process accepts from one address.", minimum=1, maximum=1_000_000
    )
    BROKER_HANDSHAKE_TIMEOUT = seconds(
        10.0,
        "Time from accepting a connection to the end of its handshake, TLS included.",
        minimum=0.1,
        maximum=3600,
    )
    BROKER_IDLE_TIMEOUT = seconds(0.0, "A connection silent for this long is closed; 0 means never.")
    BROKER_DRAIN_TIMEOUT = seconds(
        10.0, "Time an orderly stop has to finish or hand back what is in flight.", maximum=3600
    )
    BROKER_TLS_CERT = file("The certificate chain (PEM) of the listeners, which then speak TLS only.")
    BROKER_TLS_KEY = file("The private key (PEM) of `BROKER_TLS_CERT`.")
    BROKER_TLS_CLIENT_CA = file("The authority (PEM) whose certificates clients must show: mutual TLS.")
    BROKER_ALLOW = networks(
        "Networks that may connect to the listeners of protocols without authentication. None means any "
        "address, which is safe only where the listener's own address is."
    )


class OverhopOptions(Options):
    """Overhop"""

    BROKER_OVERHOP_MAX_ENVELOPE = size(
        8 * MIB, "The largest Overhop envelope a client may send.", minimum=64 * 1024, maximum=32 * MIB
    )
    BROKER_OVERHOP_UNHELLOED_MAX_LIFETIME = seconds(
        10.0, "Time an Overhop client has to send HELLO.", minimum=0.05, maximum=3600
    )
    BROKER_OVERHOP_HELLOED_UNREGISTERED_MAX_LIFETIME = seconds(
        10.0, "Time after HELLO in which an Overhop client should send REGISTER; then it is challenged by IDENT.",
        minimum=0.05, maximum=3600,
    )  # fmt: skip
    BROKER_OVERHOP_IDENT_REGISTER_TIMEOUT = seconds(
        2.0, "Time after IDENT in which an Overhop client must send REGISTER.", minimum=0.05, maximum=3600
    )
    BROKER_OVERHOP_API_KEY = text(
        "", "The name of an API key whose patterns hold for all Overhop clients. Empty, they may do anything."
    )


class EngineOptions(Options):
    """The engine"""

    BROKER_PREFETCH = integer(
        10_000, "Messages a process holds in memory for each queue.", minimum=1, maximum=10_000_000
    )
    BROKER_PREFETCH_BYTES = size(16 * MIB, "Payload bytes a process holds in memory for each queue.", minimum=64 * 1024)
    BROKER_PENDING_BYTES = size(
        32 * MIB,
        "Payload bytes waiting for their commit at which sockets are no longer read.",
        minimum=64 * 1024,
    )

    BROKER_PUBLISH_TIMEOUT = seconds(
        60.0,
        "Time the database may be away before publishes that wait for it are refused, where the protocol can say so.",
        minimum=0.1,
        maximum=86_400,
    )


class QueueDefaults(Options):
    """What a queue has unless its own row says otherwise"""

    BROKER_DEFAULT_MAX_ATTEMPTS = integer(
        5, "Deliveries of a message before it becomes a dead letter.", minimum=1, maximum=10_000
    )
    BROKER_DEFAULT_RETRY_BACKOFF = seconds(
        1.0, "Wait before the first redelivery; it doubles with each further one.", maximum=86_400
    )
    BROKER_DEFAULT_ACK_TIMEOUT = seconds(
        60.0, "Time a consumer has to acknowledge a delivery.", minimum=0.1, maximum=30 * 86_400
    )
    BROKER_BLIPMQ_MAX_ATTEMPTS = integer(
        8, "Deliveries of a message, for the queues of BlipMQ subscriptions.", minimum=1, maximum=10_000
    )
    BROKER_BLIPMQ_RETRY_BACKOFF = seconds(
        0.1, "Wait before the first redelivery, for the queues of BlipMQ subscriptions.", maximum=86_400
    )
    BROKER_SSPQ_QUEUE = text("sspq", "The queue that SSPQ's clients share.")


class RetentionOptions(Options):
    """How long things are kept"""

    BROKER_ARCHIVE_DAYS = integer(30, "Days that finished messages stay in the archive.", minimum=1, maximum=36_500)
    BROKER_IDLE_SUBSCRIPTION_DAYS = integer(
        0,
        "Days after which a subscription without a consumer is dropped with its backlog; 0 means never.",
        maximum=36_500,
    )


def _tls_files_go_together(env: Environment) -> Iterator[str]:
    if (env.BROKER_TLS_CERT is None) != (env.BROKER_TLS_KEY is None):
        given, missing = ("CERT", "KEY") if env.BROKER_TLS_CERT else ("KEY", "CERT")
        yield f"BROKER_TLS_{given} is set and BROKER_TLS_{missing} is not: TLS needs both."
    if env.BROKER_TLS_CLIENT_CA is not None and env.BROKER_TLS_CERT is None:
        yield "BROKER_TLS_CLIENT_CA is set without BROKER_TLS_CERT: client certificates need TLS."


class Environment(RetentionOptions, QueueDefaults, EngineOptions, OverhopOptions, ListenerOptions, SiteOptions):
    """Every option, with its value once read."""

    checks = (_tls_files_go_together,)
