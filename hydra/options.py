"""What a node may be told: one frozen object, read from Django's settings in one place."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hydra.database import conninfo_from_settings
from hydra.irc.settings import IrcServer, IrcTimes, IrcUser
from hydra.protocol.doorkeeper import DoorRules
from hydra.protocol.times import Times
from hydra.transports.address import Address
from hydra.transports.base import TransportOptions
from queues.engine import EngineOptions
from queues.engine import options_from_settings as engine_options
from wire.tls import server_context

#: What `BROKER_HYDRA_SECRET` says where none is asked for although one is kept.
NO_SECRET: Final = "off"


@dataclass(frozen=True, kw_only=True)
class HydraOptions:
    """One node of `manage.py runhydra`."""

    name: str
    """Its stable key."""
    listen: tuple[Address, ...]
    links: tuple[Address, ...] = ()
    found: bool = False
    """Whether it begins a network if it was never in one; without links the first node of a database does so anyway."""
    times: Times = field(default_factory=Times)
    door: DoorRules = field(default_factory=DoorRules)
    transport: TransportOptions = field(default_factory=TransportOptions)
    irc: tuple[IrcServer, IrcUser] | None = None
    irc_times: IrcTimes = field(default_factory=IrcTimes)
    recv: str | None = None
    """The queue that lines from IRC go to."""
    send: str | None = None
    """The queue whose messages are lines for IRC."""
    store: str
    """Where the database is, as libpq reads it."""
    engine: EngineOptions
    """For the queue whose messages are lines for IRC."""


def options_from_settings(
    *,
    name: str,
    listen: tuple[Address, ...],
    links: tuple[Address, ...],
    found: bool,
    irc: tuple[IrcServer, IrcUser] | None,
    recv: str | None,
    send: str | None,
    insecure: bool = False,
) -> HydraOptions:
    """The options that Django's settings give, and what the command line says beside them.

    Raises ValueError for times that cannot be, and TlsConfigurationError.
    """
    from django.conf import settings

    server_tls = client_tls = None
    if settings.BROKER_HYDRA_TLS_CERT is not None:
        server_tls, client_tls = tls_contexts(
            settings.BROKER_HYDRA_TLS_CERT, settings.BROKER_HYDRA_TLS_KEY, settings.BROKER_HYDRA_TLS_CA
        )
    pace = IrcTimes(burst=settings.BROKER_HYDRA_IRC_BURST, interval=settings.BROKER_HYDRA_IRC_INTERVAL)
    return HydraOptions(
        name=name, listen=listen, links=links, found=found, irc=irc, recv=recv, send=send,
        times=Times(
            max_ping=settings.BROKER_HYDRA_MAX_PING,
            max_vote_min=settings.BROKER_HYDRA_MAX_VOTE_MIN,
            max_vote_max=settings.BROKER_HYDRA_MAX_VOTE_MAX,
            max_meet=settings.BROKER_HYDRA_MAX_MEET,
            wait_for_lease=settings.BROKER_HYDRA_WAIT_FOR_LEASE,
        ),
        door=DoorRules(
            allow=settings.BROKER_HYDRA_ALLOW,
            disconnects=settings.BROKER_HYDRA_MAX_DISCONNECTS,
            links=settings.BROKER_HYDRA_MAX_LINKS,
        ),
        transport=TransportOptions(
            secret=b"" if settings.BROKER_HYDRA_SECRET == NO_SECRET else settings.BROKER_HYDRA_SECRET.encode(),
            server_tls=server_tls,
            client_tls=client_tls,
            insecure=insecure,
            irc=pace,
        ),
        irc_times=pace,
        store=conninfo_from_settings(),
        engine=engine_options("hydra"),
    )  # fmt: skip


def tls_contexts(cert: Path, key: Path, ca: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """For links that are accepted and for those that are dialled: each side shows a certificate of this authority.

    A node's certificate says that it is one of the nodes, not where it runs: its names are not looked at.
    Raises TlsConfigurationError.
    """
    server = server_context(cert, key, ca)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.minimum_version = ssl.TLSVersion.TLSv1_2
    client.check_hostname = False
    client.load_verify_locations(cafile=ca)
    client.load_cert_chain(cert, key)
    return server, client
