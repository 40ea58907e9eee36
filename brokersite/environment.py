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
    mode,
    networks,
    postgres_url,
    seconds,
    size,
    text,
    words,
)
from brokersite.secretfile import kept_secret, read_secret

CHECKOUT = Path(__file__).resolve().parent.parent

MIB = 1024 * 1024

#: Where under ``DATA_DIR`` `manage.py up` keeps the secret of its Hydra nodes.
HYDRA_SECRET_FILE = "hydra_secret"


def _kept_secret_key(earlier: Mapping[str, Any]) -> str:
    return kept_secret(earlier["DATA_DIR"] / "secret_key", length=50)


def _kept_hydra_secret(earlier: Mapping[str, Any]) -> str:
    try:
        return read_secret(earlier["DATA_DIR"] / HYDRA_SECRET_FILE)
    except FileNotFoundError:
        return ""


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
    BROKER_TLS_PROXY = flag(
        False,
        "People reach the site through a proxy that speaks TLS and sets `X-Forwarded-Proto` whatever the client sent. "
        "Cookies then go over TLS only.",
    )
    CSRF_TRUSTED_ORIGINS = words(
        (), "Origins, such as `https://broker.example`, whose forms are taken although a proxy changes the host's name."
    )
    BROKER_HSTS_SECONDS = integer(
        0, "Time for which browsers are told to use TLS only: such as 31536000, once TLS is there to stay. 0: no time.",
        maximum=10 * 31_536_000,
    )  # fmt: skip
    BROKER_KEY_PEPPERS = words(
        lambda earlier: (earlier["SECRET_KEY"],),
        "Secrets without which the digests of API keys say nothing. New keys are digested with the first; keys that "
        "were digested with any of them are accepted. All hosts on one database need the same.",
        default_text="`SECRET_KEY`",
        shortest=16,
    )
    DEBUG = flag(False, "Django's debug pages. Never on where others can reach the site.")
    ALLOWED_HOSTS = words(
        ("localhost", "127.0.0.1", "[::1]"), "Host names the site answers to, with commas between them."
    )


class HttpLimits(Options):
    """The site under daphne"""

    BROKER_HTTP_MAX_BODY = size(
        4 * MIB, "The largest body of a request; a larger one is refused (413) before it is read. Bodies of sixteen "
        "times as much may be under way at the same time (503).",
        minimum=64 * 1024, maximum=1024 * MIB,
    )  # fmt: skip
    BROKER_HTTP_REQUEST_TIMEOUT = seconds(
        60.0, "Time a request has to arrive, all of it (408).", minimum=0.1, maximum=3600
    )
    BROKER_HTTP_ANSWER_TIMEOUT = seconds(
        600.0, "Time the site has to answer a request, unless daphne is told another.", minimum=1, maximum=86_400
    )
    BROKER_HTTP_MAX_CONNECTIONS = integer(
        2000, "Connections of the site that are no WebSockets, at most. One more is closed.",
        minimum=1, maximum=1_000_000,
    )  # fmt: skip
    BROKER_HTTP_MAX_CONNECTIONS_PER_ADDRESS = integer(
        500, "The same from one address. All that come through a proxy come from its address.",
        minimum=1, maximum=1_000_000,
    )  # fmt: skip


class ListenerOptions(Options):
    """The listeners"""

    BROKER_MAX_FRAME = size(
        16 * MIB,
        "The largest BlipMQ frame and SSPQ payload a client may send; a larger one closes its connection. BlipMQ "
        "itself has no larger frames.",
        minimum=1024,
        maximum=16 * MIB,
    )
    BROKER_MAX_CONNECTIONS = integer(
        10_000, "Connections a process accepts, over all its listeners.", minimum=1, maximum=1_000_000
    )
    BROKER_MAX_CONNECTIONS_PER_ADDRESS = integer(
        1000, "Connections a process accepts from one address.", minimum=1, maximum=1_000_000
    )
    BROKER_MAX_CONNECTIONS_PER_KEY = integer(
        2000, "BlipMQ, or peerbus, connections of a process with the same API key.", minimum=1, maximum=1_000_000
    )
    BROKER_MAX_UNAUTHENTICATED = integer(
        2000,
        "BlipMQ and Overhop connections of a process whose handshake is not complete; with one more, that which has "
        "been at it longest is closed.",
        minimum=1, maximum=1_000_000,
    )  # fmt: skip
    BROKER_PARTIAL_BYTES = size(
        256 * MIB,
        "Bytes a process holds, over all connections, of frames that are not complete or not handled yet. Over it, "
        "connections that hold most are closed, unauthenticated ones first. At least twice the largest frame.",
        minimum=64 * 1024,
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


class BlipMQOptions(Options):
    """BlipMQ"""

    BROKER_BLIPMQ_MAX_SUBSCRIPTIONS_PER_KEY = integer(
        100_000, "Subscriptions that an API key may make, over all nodes; several nodes may exceed it by a few.",
        minimum=1, maximum=100_000_000,
    )  # fmt: skip
    BROKER_BLIPMQ_QOS0_MESSAGES = integer(
        1024, "QoS 0 messages a process holds for a subscription until they are polled; the oldest are dropped.",
        minimum=1, maximum=10_000_000,
    )  # fmt: skip
    BROKER_BLIPMQ_QOS0_BYTES = size(
        4 * MIB, "Bytes of QoS 0 messages a process holds for a subscription; the oldest are dropped.",
        minimum=1024, maximum=1024 * MIB,
    )  # fmt: skip
    BROKER_BLIPMQ_QOS0_FORWARD_BYTES = size(
        5600, "The largest QoS 0 message that goes to a subscriber on another node; larger ones are dropped. A "
        "notification of PostgreSQL takes no more than the default.",
        minimum=0, maximum=5600,
    )  # fmt: skip


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
    BROKER_OVERHOP_MAX_QUEUES = integer(
        10_000, "Queues up to which clients may make more by ADDQUEUE; the system's do not count.",
        minimum=0, maximum=10_000_000,
    )  # fmt: skip
    BROKER_OVERHOP_MAX_SUBSCRIPTIONS = integer(
        1000, "Subscriptions of one Overhop connection.", minimum=1, maximum=1_000_000
    )
    BROKER_OVERHOP_API_KEY = text(
        "", "The name of an API key whose patterns hold for all Overhop clients. Empty, they may do anything."
    )


class PeerbusOptions(Options):
    """peerbus"""

    BROKER_PEERBUS_WINDOW = integer(
        10_000, "Letters delivered to a peer and not acknowledged, at most.", minimum=1, maximum=1_000_000
    )
    BROKER_PEERBUS_WINDOW_BYTES = size(
        2 * MIB, "Bytes of letters on their way to a peer that its socket has not taken, at most; one more may follow.",
        minimum=64 * 1024, maximum=256 * MIB,
    )  # fmt: skip
    BROKER_PEERBUS_NAMES_PER_KEY = integer(
        10_000, "Names of peers that one API key may take, connected or not; 0: any number.", minimum=0,
        maximum=100_000_000,
    )  # fmt: skip
    BROKER_PEERBUS_PENDING_BYTES_PER_KEY = size(
        16 * MIB, "Bytes that the peers of one API key have sent and that are not committed yet, at most: beyond it "
        "these connections alone are not read from.", minimum=64 * 1024, maximum=1024 * MIB,
    )  # fmt: skip
    BROKER_PEERBUS_SLOW_TIMEOUT = seconds(
        15.0, "Time after which a peer that reads nothing of what waits for it is closed as a slow consumer.",
        minimum=0.1, maximum=3600,
    )  # fmt: skip
    BROKER_PEERBUS_HANDSHAKE_TIMEOUT = seconds(
        10.0, "Time a peer has to send its register frame.", minimum=0.05, maximum=3600
    )
    BROKER_PEERBUS_DEDUPE_DAYS = integer(
        30, "Days in which the id of a letter counts as sent before.", minimum=1, maximum=36_500
    )
    BROKER_PEERBUS_RELAXED = flag(
        False,
        "As the reference server: any API key may take a name that is not connected, and acknowledge any letter.",
    )
    BROKER_PEERBUS_AUDIT = flag(
        True, "Record every letter sent, delivered and acknowledged in the audit chain `peerbus`."
    )
    PEERBUS_TOKEN = text(
        "", "The API key that `manage.py peer` and `peermcp` show, unless they are given another.", maximum=1000
    )
    PEERBUS_HMAC_SECRET = text(
        "",
        "The secret that peers share, 32 bytes or more. What a route brings to a peer from a queue or topic is signed "
        "with it: empty, such messages become dead letters. `manage.py peer` and `peermcp` sign with it too.",
        maximum=4096,
    )


class HydraOptions(Options):
    """Hydra"""

    BROKER_HYDRA_MAX_PING = seconds(
        10.0,
        "Silence after which a node is dropped, and after which a leader's term has ended. All times of Hydra are "
        "to be the same on all nodes of a network.",
        minimum=0.05, maximum=3600,
    )  # fmt: skip
    BROKER_HYDRA_MAX_VOTE_MIN = seconds(5.0, "The least time that an election is given.", minimum=0.02, maximum=3600)
    BROKER_HYDRA_MAX_VOTE_MAX = seconds(15.0, "The most time that an election is given.", minimum=0.02, maximum=3600)
    BROKER_HYDRA_MAX_MEET = seconds(
        10.0, "The most time that the induction of a node may take.", minimum=0.05, maximum=3600
    )
    BROKER_HYDRA_WAIT_FOR_LEASE = flag(
        True,
        "Pledge to nobody before the lease of the last leader has ended. Without it, as in the published document, two "
        "nodes may be on IRC for a moment.",
    )
    BROKER_HYDRA_ALLOW = networks("Networks whose nodes may connect, with commas between them. None means any.")
    BROKER_HYDRA_MAX_LINKS = integer(256, "Links that a node accepts, at most.", minimum=1, maximum=10_000)
    BROKER_HYDRA_MAX_DISCONNECTS = integer(
        60, "Links of one address that may end within a minute; then it is refused for a while.",
        minimum=1, maximum=100_000,
    )  # fmt: skip
    BROKER_HYDRA_SECRET = text(
        _kept_hydra_secret,
        "A secret that all nodes share and prove to each other before anything else is said. `off`: none is asked for.",
        maximum=4096,
        default_text="that of `DATA_DIR/hydra_secret`, which `manage.py up` makes; else none",
    )  # fmt: skip
    BROKER_HYDRA_TLS_CERT = file("The node's certificate, PEM: its TCP links use TLS, and both sides show one.")
    BROKER_HYDRA_TLS_KEY = file("The private key of `BROKER_HYDRA_TLS_CERT`, PEM.")
    BROKER_HYDRA_TLS_CA = file("The authority that signs the certificates of all nodes, PEM.")
    BROKER_HYDRA_IRC = text(
        "", "The IRC server, HOST:PORT, that `manage.py runhydra` connects to without `--irc`. Empty: none."
    )
    BROKER_HYDRA_NICK = text("fivewire", "The nick on IRC without `--nick`.", maximum=100)
    BROKER_HYDRA_JOIN = words((), "The channels to join without `--join`, with commas between them.")
    BROKER_HYDRA_IRC_PASSWORD = text("", "The password of the IRC server.", maximum=400)
    BROKER_HYDRA_IRC_BURST = integer(5, "Lines that go to IRC at once.", minimum=1, maximum=10_000)
    BROKER_HYDRA_IRC_INTERVAL = seconds(
        2.0, "Then one line goes in this time, since IRC servers end connections that are faster; 0: no limit.",
        minimum=0, maximum=60,
    )  # fmt: skip


class EngineOptions(Options):
    """The engine"""

    BROKER_PREFETCH = integer(
        10_000, "Messages a process holds in memory for each queue.", minimum=1, maximum=10_000_000
    )
    BROKER_PREFETCH_BYTES = size(
        16 * MIB, "Bytes of messages, with headers and all, a process holds in memory for each queue.",
        minimum=64 * 1024,
    )  # fmt: skip
    BROKER_PREFETCH_TOTAL_BYTES = size(
        128 * MIB, "Bytes of messages a process holds in memory for all queues; each may have as much as is left.",
        minimum=64 * 1024,
    )  # fmt: skip
    BROKER_PENDING_BYTES = size(
        32 * MIB,
        "Payload bytes waiting for their commit at which sockets are no longer read.",
        minimum=64 * 1024,
    )
    BROKER_PENDING_BYTES_PER_CLIENT = size(
        16 * MIB,
        "Bytes waiting for their commit at which the connections of one API key, or of one address where there are no "
        "keys, are no longer read; others are.",
        minimum=64 * 1024,
    )

    BROKER_PUBLISH_TIMEOUT = seconds(
        60.0,
        "Time the database may be away, or take for a commit, before publishes that wait for it are refused, where the "
        "protocol can say so.",
        minimum=0.1,
        maximum=86_400,
    )
    BROKER_STALL_TIMEOUT = seconds(
        5.0, "Time a commit may take before `/readyz` says that publishes are not stored.", minimum=0.1, maximum=86_400
    )
    BROKER_DATABASE_TIMEOUT = seconds(
        15.0,
        "Time the database may be silent before the engine leaves it and connects anew, and a host of the engine "
        "before the database lets go of what it has locked.",
        minimum=1, maximum=3600,
    )  # fmt: skip


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


class CeleryOptions(Options):
    """Celery"""

    BROKER_CELERY_CONCURRENCY = integer(
        2, "Tasks that a worker runs at a time, each in a process of its own.", minimum=1, maximum=1000
    )


class RetentionOptions(Options):
    """How long things are kept"""

    BROKER_ARCHIVE_DAYS = integer(30, "Days that finished messages stay in the archive.", minimum=1, maximum=36_500)
    BROKER_IDLE_SUBSCRIPTION_DAYS = integer(
        0,
        "Days after which a subscription without a consumer is dropped with its backlog; 0 means never.",
        maximum=36_500,
    )
    BROKER_ETL_RUN_DAYS = integer(
        90, "Days that ETL runs which have ended stay in the admin, with their logs.", minimum=1, maximum=36_500
    )
    BROKER_ROLLUP_DAYS = integer(
        400, "Days that the hourly figures of queues stay, from which charts are drawn.", minimum=8, maximum=36_500
    )


class AuditOptions(Options):
    """The audit chains"""

    BROKER_AUDIT_KEY = file(
        "The Ed25519 private key (PEM, not encrypted) that signs the audit chains' anchors. Unset, one is generated "
        "once and kept in `DATA_DIR/audit_key`."
    )
    BROKER_AUDIT_TRUSTED_KEYS = words(
        (),
        "Further Ed25519 public keys whose anchors count, as `manage.py audit key` prints them: those of other hosts "
        "and earlier ones.",
    )
    BROKER_AUDIT_ANCHOR_INTERVAL = seconds(
        60.0, "Time between two signed anchors of an audit chain that has grown.", minimum=1, maximum=86_400
    )
    BROKER_AUDIT_DAYS = integer(365, "Days that rows stay in the audit chains; 0 means for ever.", maximum=36_500)


class EtlOptions(Options):
    """ETL"""

    SPARK_MASTER = text("local[*]", "Where Spark runs: `local[N]`, `spark://HOST:PORT`, `yarn`, `k8s://…`.")
    ETL_OUTPUT = text(
        lambda earlier: str(earlier["DATA_DIR"] / "etl"),
        "Where Parquet is written: a directory, or whatever else Spark can write to, such as `s3a://bucket/path`.",
        maximum=4096,
        default_text="`DATA_DIR/etl`",
    )
    BROKER_ETL_BODIES = text("none", "What is exported of payloads that the archive keeps: `none`, `raw` or `json`.")
    BROKER_ETL_BODY_SCHEMA = text(
        "", "Fields of JSON payloads that become columns, such as `order_id BIGINT, total DOUBLE`.", maximum=10_000
    )
    BROKER_ETL_VERIFY = text("all", "Whether a run verifies the audit chains: `all` or `none`.")
    BROKER_ETL_READERS = integer(4, "Connections to the database that a run reads with.", minimum=1, maximum=1000)
    BROKER_ETL_BUSY_PERCENT = integer(
        40,
        "Percent of the time that a run works while other processes use more than half of this machine's processors;"
        " 100: always.",
        minimum=5,
        maximum=100,
    )
    BROKER_ETL_TIMEOUT = seconds(6 * 3600.0, "Time after which a run is ended.", minimum=1, maximum=7 * 86_400)
    BROKER_ETL_DRIVER_MEMORY = size(1024 * MIB, "Memory of Spark's driver.", minimum=512 * MIB)
    BROKER_ETL_EXECUTOR_MEMORY = size(1024 * MIB, "Memory of each executor on a cluster.", minimum=512 * MIB)
    BROKER_ETL_COMPACT_FILES = integer(
        4, "Small files of a day that is over and a queue, at which they are merged.", minimum=2, maximum=100_000
    )
    BROKER_ETL_UMASK = mode(
        0o077, "Permissions that files and directories of a local `ETL_OUTPUT` do not get; `027` lets a group read."
    )
    BROKER_ETL_ENVIRONMENT = words(
        (), "Variables of the environment that Spark has, beside those of Spark, Hadoop, Java and their clouds."
    )
    BROKER_ETL_JDBC_JAR = file(
        "PostgreSQL's JDBC driver, a jar. Unset, one in a known place is taken, else Spark fetches it from Maven."
    )


def _audit_keys_are_keys(env: Environment) -> Iterator[str]:
    if not (env.BROKER_AUDIT_KEY or env.BROKER_AUDIT_TRUSTED_KEYS):
        return
    from queues.audit.signing import InvalidAuditKey, parse_private_key, parse_public_key

    if env.BROKER_AUDIT_KEY is not None:
        try:
            parse_private_key(env.BROKER_AUDIT_KEY.read_bytes())
        except (OSError, InvalidAuditKey):
            yield f"BROKER_AUDIT_KEY={str(env.BROKER_AUDIT_KEY)!r}: it must be a readable Ed25519 private key in PEM."
    for key in env.BROKER_AUDIT_TRUSTED_KEYS:
        try:
            parse_public_key(key)
        except InvalidAuditKey:
            yield f"BROKER_AUDIT_TRUSTED_KEYS: {key!r} must be an Ed25519 public key: 32 bytes in base64."


def _frames_fit(env: Environment) -> Iterator[str]:
    for name in ("BROKER_MAX_FRAME", "BROKER_OVERHOP_MAX_ENVELOPE"):
        if env.BROKER_PARTIAL_BYTES < 2 * env.values[name]:
            yield f"BROKER_PARTIAL_BYTES is less than twice {name}: such a frame might never arrive."


def _etl_words_are_known(env: Environment) -> Iterator[str]:
    for name, known in (("BODIES", ("none", "raw", "json")), ("VERIFY", ("all", "none"))):
        value = env.values[f"BROKER_ETL_{name}"]
        if value not in known:
            yield f"BROKER_ETL_{name}={value!r}: it must be {' or '.join(known)}."
    if env.BROKER_ETL_BODY_SCHEMA and env.BROKER_ETL_BODIES != "json":
        yield "BROKER_ETL_BODY_SCHEMA is set and BROKER_ETL_BODIES is not json: only JSON has fields."


def _tls_files_go_together(env: Environment) -> Iterator[str]:
    if (env.BROKER_TLS_CERT is None) != (env.BROKER_TLS_KEY is None):
        given, missing = ("CERT", "KEY") if env.BROKER_TLS_CERT else ("KEY", "CERT")
        yield f"BROKER_TLS_{given} is set and BROKER_TLS_{missing} is not: TLS needs both."
    if env.BROKER_TLS_CLIENT_CA is not None and env.BROKER_TLS_CERT is None:
        yield "BROKER_TLS_CLIENT_CA is set without BROKER_TLS_CERT: client certificates need TLS."
    hydra = {name: getattr(env, f"BROKER_HYDRA_TLS_{name}") for name in ("CERT", "KEY", "CA")}
    if any(hydra.values()) and not all(hydra.values()):
        missing = ", ".join(f"BROKER_HYDRA_TLS_{name}" for name, path in hydra.items() if path is None)
        yield f"{missing} not set: nodes that use TLS need CERT, KEY and CA, since each shows the other who it is."
    if env.BROKER_HYDRA_MAX_VOTE_MIN > env.BROKER_HYDRA_MAX_VOTE_MAX:
        yield "BROKER_HYDRA_MAX_VOTE_MIN is greater than BROKER_HYDRA_MAX_VOTE_MAX."


class Environment(
    EtlOptions, AuditOptions, RetentionOptions, CeleryOptions, QueueDefaults, EngineOptions, HydraOptions,
    PeerbusOptions, OverhopOptions, BlipMQOptions, ListenerOptions, HttpLimits, SiteOptions,
):  # fmt: skip
    """Every option, with its value once read."""

    checks = (_tls_files_go_together, _frames_fit, _audit_keys_are_keys, _etl_words_are_known)
