"""Every environment variable the project reads. ``brokersite.settings`` exposes each under the same name.

A new option is one entry in the class it belongs to; ``manage.py settingsdoc`` writes it into ``docs/settings.md``.
Those of the app `queues` are declared in ``queues/config/settings.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from queues.config.options import (
    Options,
    choice,
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
from queues.config.secret_files import find_secret, kept_secret
from queues.config.settings import (
    AuditSettings,
    EngineSettings,
    EtlSettings,
    FileSettings,
    KeySettings,
    MailboxSettings,
    QueueSettings,
    QueuesSettings,
    RetentionSettings,
    SubscriptionSettings,
)
from queues.processes.childprocess import PACKAGES

#: The directory that holds the packages: the checkout, or site-packages of an installation.
CHECKOUT = PACKAGES
IN_CHECKOUT = (CHECKOUT / "manage.py").is_file()

#: The default DATA_DIR: that of the checkout; an installation's is in the current directory.
DATA_DIR = (CHECKOUT if IN_CHECKOUT else Path.cwd()) / ".data"

MIB = 1024 * 1024

#: The file under ``DATA_DIR`` in which `manage.py up` keeps the secret of its Hydra nodes.
HYDRA_SECRET_FILE = "hydra_secret"


class SiteOptions(FileSettings):
    """The site and the database"""

    DATA_DIR = FileSettings.DATA_DIR.with_default(
        DATA_DIR, "`.data` in the checkout, or in the current directory of an installation"
    )
    DATABASE_URL = postgres_url(
        "The PostgreSQL (14 to 18) that stores everything. Unset, an embedded one under `DATA_DIR` is joined "
        "or started.",
        default_text="the embedded PostgreSQL",
    )
    SECRET_KEY = text(
        lambda earlier: kept_secret(earlier["DATA_DIR"] / "secret_key", length=50),
        "The key Django signs sessions with. Several hosts of one site need the same.",
        maximum=1000,
        default_text="generated once, kept in `DATA_DIR/secret_key`",
        secret=True,
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
    DEBUG = flag(False, "Django's debug pages. Never on where others can reach the site.")
    BROKER_LOG_FORMAT = choice(
        "text", "How log lines are written: `json` is one object a line, with fields for what a line is about.",
        "text", "json",
    )  # fmt: skip
    ALLOWED_HOSTS = words(
        ("localhost", "127.0.0.1", "[::1]"), "Host names the site answers to, with commas between them."
    )
    BROKER_ADMIN_BUSY_PERCENT = integer(
        5, "Percent of the processors' time that the admin's pages work at most while other processes use more than "
        "half of it; then those that come faster wait. 100: no page waits.",
        minimum=1, maximum=100,
    )  # fmt: skip


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
        600.0, "Time the site has to answer a request, unless daphne is told another.", minimum=1
    )
    BROKER_HTTP_MAX_CONNECTIONS = integer(
        2000, "Connections of the site that are no WebSockets, at most. One more is closed.",
        minimum=1, maximum=1_000_000,
    )  # fmt: skip
    BROKER_HTTP_MAX_CONNECTIONS_PER_ADDRESS = integer(
        500, "The same from one address. All that come through a proxy come from its address.",
        minimum=1, maximum=1_000_000,
    )  # fmt: skip


class ListenerSettings(Options):
    """The listeners"""

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
        10.0, "Time from accepting a connection to the end of its handshake, TLS included.", minimum=0.1, maximum=3600
    )
    BROKER_IDLE_TIMEOUT = seconds(0.0, "A connection silent for this long is closed; 0 means never.")
    BROKER_DRAIN_TIMEOUT = seconds(
        10.0, "Time an orderly stop has to finish or hand back deliveries in flight.", maximum=3600
    )
    BROKER_TLS_CERT = file("The certificate chain (PEM) of the listeners, which then speak TLS only.")
    BROKER_TLS_KEY = file("The private key (PEM) of `BROKER_TLS_CERT`.")
    BROKER_TLS_CLIENT_CA = file("The authority (PEM) whose certificates clients must show: mutual TLS.")
    BROKER_ALLOW = networks(
        "Networks that may connect to the listeners of protocols without authentication. None means any "
        "address, which is safe only where the listener's own address is."
    )
    BROKER_PENDING_BYTES_PER_CLIENT = size(
        16 * MIB,
        "Bytes waiting for their commit at which the connections of one API key, or of one address where there are no "
        "keys, are no longer read; others are.",
        minimum=64 * 1024,
    )
    BROKER_SSPQ_QUEUE = text("sspq", "The queue that SSPQ's clients share.")


class OverhopSettings(Options):
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
        10_000, "Queues up to which clients may make more by ADDQUEUE; the system's do not count.", maximum=10_000_000
    )
    BROKER_OVERHOP_MAX_SUBSCRIPTIONS = integer(
        1000, "Subscriptions of one Overhop connection.", minimum=1, maximum=1_000_000
    )
    BROKER_OVERHOP_API_KEY = text(
        "", "The name of an API key whose patterns hold for all Overhop clients. Empty, they may do anything."
    )


class PeerbusOptions(Options):
    """peerbus"""

    BROKER_PEERBUS_WINDOW_BYTES = size(
        2 * MIB, "Bytes of letters on their way to a peer that its socket has not taken, at most; one more may follow.",
        minimum=64 * 1024, maximum=256 * MIB,
    )  # fmt: skip
    BROKER_PEERBUS_SLOW_TIMEOUT = seconds(
        15.0, "Time after which a peer that reads nothing of what waits for it is closed as a slow consumer.",
        minimum=0.1, maximum=3600,
    )  # fmt: skip
    BROKER_PEERBUS_HANDSHAKE_TIMEOUT = seconds(
        10.0, "Time a peer has to send its register frame.", minimum=0.05, maximum=3600
    )
    PEERBUS_TOKEN = text(
        "", "The API key that `manage.py peer` and `peermcp` show, unless they are given another.", maximum=1000,
        secret=True,
    )  # fmt: skip
    PEERBUS_HMAC_SECRET = text(
        "",
        "The secret that peers share, 32 bytes or more. What a route brings to a peer from a queue or topic is signed "
        "with it: empty, such messages become dead letters. `manage.py peer` and `peermcp` sign with it too.",
        maximum=4096,
        secret=True,
    )


class HydraSettings(Options):
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
        "No pledge before the lease of the last leader has ended. Without it, as in the published document, two "
        "nodes may be on IRC for a moment.",
    )
    BROKER_HYDRA_ALLOW = networks("Networks whose nodes may connect, with commas between them. None means any.")
    BROKER_HYDRA_MAX_LINKS = integer(256, "Links that a node accepts, at most.", minimum=1, maximum=10_000)
    BROKER_HYDRA_MAX_DISCONNECTS = integer(
        60, "Links of one address that may end within a minute; then it is refused for a while.",
        minimum=1, maximum=100_000,
    )  # fmt: skip
    BROKER_HYDRA_SECRET = text(
        lambda earlier: find_secret(earlier["DATA_DIR"] / HYDRA_SECRET_FILE),
        "A secret that all nodes share and prove to each other before anything else is said. `off`: none is asked for.",
        maximum=4096,
        default_text="that of `DATA_DIR/hydra_secret`, which `manage.py up` makes; else none",
        secret=True,
    )  # fmt: skip
    BROKER_HYDRA_TLS_CERT = file("The node's certificate, PEM: its TCP links use TLS, and both sides show one.")
    BROKER_HYDRA_TLS_KEY = file("The private key of `BROKER_HYDRA_TLS_CERT`, PEM.")
    BROKER_HYDRA_TLS_CA = file("The authority that signs the certificates of all nodes, PEM.")
    BROKER_HYDRA_IRC = text(
        "", "The IRC server, HOST:PORT, that `manage.py runhydra` connects to without `--irc`. Empty: none."
    )
    BROKER_HYDRA_NICK = text("fivewire", "The nick on IRC without `--nick`.", maximum=100)
    BROKER_HYDRA_JOIN = words((), "The channels to join without `--join`, with commas between them.")
    BROKER_HYDRA_IRC_PASSWORD = text("", "The password of the IRC server.", maximum=400, secret=True)
    BROKER_HYDRA_IRC_TLS_CA = file("The authority of the IRC server's certificate, PEM. Unset: those of the system.")
    BROKER_HYDRA_IRC_TLS_CERT = file("The certificate, PEM, that `--irc-tls` shows to the IRC server.")
    BROKER_HYDRA_IRC_TLS_KEY = file("Its private key, PEM.")
    BROKER_HYDRA_IRC_SASL = text(
        "", "How to log in to an account on IRC without `--irc-sasl`: `plain` or `external`. Empty: not at all.",
        maximum=20,
    )  # fmt: skip
    BROKER_HYDRA_IRC_ACCOUNT = text("", "The account on IRC without `--irc-account`. Empty: the nick.", maximum=200)
    BROKER_HYDRA_IRC_ACCOUNT_PASSWORD = text("", "The password of the account on IRC.", maximum=200, secret=True)
    BROKER_HYDRA_IRC_ACCOUNT_PASSWORD_FILE = file("A file with that password, in place of the password.")
    BROKER_HYDRA_IRC_USER = text("hydra", "The user name on IRC without `--irc-user`.", maximum=100)
    BROKER_HYDRA_IRC_REALNAME = text("Hydra", "The real name on IRC without `--irc-realname`.", maximum=200)
    BROKER_HYDRA_IRC_BURST = integer(5, "Lines that go to IRC at once.", minimum=1, maximum=10_000)
    BROKER_HYDRA_IRC_INTERVAL = seconds(
        2.0, "Then one line goes in this time, since IRC servers end connections that are faster; 0: no limit.",
        minimum=0, maximum=60,
    )  # fmt: skip


class CeleryOptions(Options):
    """Celery"""

    BROKER_CELERY_CONCURRENCY = integer(
        2, "Tasks that a worker runs at a time, each in a process of its own.", minimum=1, maximum=1000
    )


def _frames_fit(env: Environment) -> Iterator[str]:
    for name in ("BROKER_MAX_FRAME", "BROKER_OVERHOP_MAX_ENVELOPE"):
        if env.BROKER_PARTIAL_BYTES < 2 * env.values[name]:
            yield f"BROKER_PARTIAL_BYTES is less than twice {name}: such a frame might never arrive."


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
    EtlSettings, AuditSettings, RetentionSettings, CeleryOptions, QueueSettings, EngineSettings, HydraSettings,
    MailboxSettings, PeerbusOptions, OverhopSettings, SubscriptionSettings, ListenerSettings, HttpLimits, KeySettings,
    SiteOptions,
):  # fmt: skip
    """Every option, with its value once read."""

    checks = (_tls_files_go_together, _frames_fit, *QueuesSettings.checks)
