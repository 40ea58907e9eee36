"""The options of a node: one frozen object, read from Django's settings in one place."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from django.conf import settings

from hydra.irc.settings import IrcAccount, IrcServer, IrcTimes, IrcUser, Mechanism
from hydra.protocol.admission import AdmissionRules
from hydra.protocol.times import Times
from hydra.storage.database import conninfo_from_settings
from hydra.transports.address import NodeAddress
from hydra.transports.base import TransportOptions
from queues.config.secret_files import read_secret
from queues.engine.api import EngineOptions
from queues.engine.api import options_from_settings as engine_options
from wire.net.tls import server_context

#: `BROKER_HYDRA_SECRET` for no secret although `DATA_DIR` has one.
NO_SECRET: Final = "off"


@dataclass(frozen=True, kw_only=True)
class HydraOptions:
    """The options of `manage.py runhydra`."""

    name: str
    """Its stable name."""
    listen: tuple[NodeAddress, ...]
    links: tuple[NodeAddress, ...] = ()
    found: bool = False
    """Whether it begins a network if it was never in one; a database's first node without links always does."""
    times: Times = field(default_factory=Times)
    admission: AdmissionRules = field(default_factory=AdmissionRules)
    transport: TransportOptions = field(default_factory=TransportOptions)
    irc: tuple[IrcServer, IrcUser] | None = None
    recv: str | None = None
    """The queue of lines from IRC."""
    send: str | None = None
    """The queue of lines for IRC."""
    store: str
    """The database's libpq connection string."""
    engine: EngineOptions
    """For the queue of lines for IRC."""


def settings_options(*, insecure: bool = False) -> dict[str, Any]:
    """The options of a node that are Django's settings. Raises ValueError for invalid times; TlsConfigurationError."""
    return {
        "times": Times(
            max_ping=settings.BROKER_HYDRA_MAX_PING,
            max_vote_min=settings.BROKER_HYDRA_MAX_VOTE_MIN,
            max_vote_max=settings.BROKER_HYDRA_MAX_VOTE_MAX,
            max_meet=settings.BROKER_HYDRA_MAX_MEET,
            wait_for_lease=settings.BROKER_HYDRA_WAIT_FOR_LEASE,
        ),
        "admission": AdmissionRules(
            allow=settings.BROKER_HYDRA_ALLOW,
            disconnects=settings.BROKER_HYDRA_MAX_DISCONNECTS,
            links=settings.BROKER_HYDRA_MAX_LINKS,
        ),
        "transport": _transport_options(insecure=insecure),
        "store": conninfo_from_settings(),
        "engine": engine_options("hydra"),
    }


def _transport_options(*, insecure: bool) -> TransportOptions:
    server_tls = client_tls = None
    if settings.BROKER_HYDRA_TLS_CERT is not None:
        server_tls, client_tls = tls_contexts(
            settings.BROKER_HYDRA_TLS_CERT, settings.BROKER_HYDRA_TLS_KEY, settings.BROKER_HYDRA_TLS_CA
        )
    secret = b"" if settings.BROKER_HYDRA_SECRET == NO_SECRET else settings.BROKER_HYDRA_SECRET.encode()
    pace = IrcTimes(burst=settings.BROKER_HYDRA_IRC_BURST, interval=settings.BROKER_HYDRA_IRC_INTERVAL)
    return TransportOptions(secret, server_tls, client_tls, insecure, irc=pace)


def tls_contexts(cert: Path, key: Path, ca: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The contexts for accepted and for dialled links: each side shows a certificate of this authority.

    A certificate proves membership, not an address: its names are not checked. Raises TlsConfigurationError.
    """
    server = server_context(cert, key, ca)
    client = ssl.create_default_context(cafile=ca)
    client.check_hostname = False
    client.load_cert_chain(cert, key)
    return server, client


def irc_tls() -> ssl.SSLContext:
    """TLS to the IRC server, with a certificate of the client's if there is one. Raises ValueError."""
    context = ssl.create_default_context(cafile=settings.BROKER_HYDRA_IRC_TLS_CA)
    if settings.BROKER_HYDRA_IRC_TLS_CERT is not None:
        try:
            context.load_cert_chain(settings.BROKER_HYDRA_IRC_TLS_CERT, settings.BROKER_HYDRA_IRC_TLS_KEY)
        except (OSError, ValueError) as error:
            raise ValueError(f"BROKER_HYDRA_IRC_TLS_CERT or _KEY cannot be used: {error}") from error
    return context


def irc_account(options: dict[str, Any]) -> IrcAccount | None:
    """The account of the command's options, if there is one. Raises ValueError."""
    if not options["irc_sasl"]:
        return None
    if (name := options["irc_sasl"]) not in [*Mechanism]:
        raise ValueError(f"BROKER_HYDRA_IRC_SASL is {name.lower()!r}: write plain or external.")
    mechanism = Mechanism(name)
    if mechanism is Mechanism.EXTERNAL and not (options["irc_tls"] and settings.BROKER_HYDRA_IRC_TLS_CERT):
        raise ValueError("SASL EXTERNAL shows a certificate: give --irc-tls, and set BROKER_HYDRA_IRC_TLS_CERT.")
    password = settings.BROKER_HYDRA_IRC_ACCOUNT_PASSWORD
    if settings.BROKER_HYDRA_IRC_ACCOUNT_PASSWORD_FILE is not None:
        password = read_secret(settings.BROKER_HYDRA_IRC_ACCOUNT_PASSWORD_FILE)
    return IrcAccount(mechanism, options["irc_account"] or options["nick"], password)
