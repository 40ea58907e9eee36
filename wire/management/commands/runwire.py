"""``manage.py runwire``: the raw TCP protocols."""

from __future__ import annotations

import argparse
import logging
import os
import ssl
from itertools import chain
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from queues.engine.api import options_from_settings
from queues.permissions.rules import Protocol
from wire.checks import check_unencrypted, check_unguarded
from wire.management.serving import ServerCommand, add_listeners, address, argument, queue_of
from wire.net.address import HostPort
from wire.net.limits import ListenerOptions
from wire.net.process_group import Place
from wire.net.processes import run_processes
from wire.net.tls import server_context
from wire.overhop.machine import Limits
from wire.overhop.service import OverhopOptions
from wire.runner import WireOptions, run
from wire.server import Quotas

logger = logging.getLogger(__name__)

sspq_queue = queue_of(Protocol.SSPQ)


@argument
def address_and_queue(text: str) -> tuple[HostPort, str]:
    """An argument HOST:PORT=QUEUE."""
    where, equals, queue = text.partition("=")
    if not equals:
        raise ValueError(f"{text!r} is not HOST:PORT=QUEUE")
    return address(where), sspq_queue(queue)


def place_of(directory: str, number: str, count: str) -> Place:
    """The place that the parent of several processes gives to one of them."""
    return Place(Path(directory), int(number), int(count))


def certificates() -> ssl.SSLContext | None:
    """TLS as the settings and their files say; None without. Raises TlsConfigurationError."""
    if not settings.BROKER_TLS_CERT:
        return None
    return server_context(settings.BROKER_TLS_CERT, settings.BROKER_TLS_KEY, settings.BROKER_TLS_CLIENT_CA)


class Command(ServerCommand):
    """Serve Overhop, BlipMQ and SSPQ until SIGTERM or Ctrl-C."""

    help = (
        "Serve the raw TCP protocols until SIGTERM or Ctrl-C. Overhop and SSPQ have no authentication. Prints the "
        "address of each listener and then 'ready'. A stop finishes or hands back deliveries in flight, within "
        "BROKER_DRAIN_TIMEOUT. SIGHUP has the certificates read again."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        add_listeners(parser)
        parser.add_argument(
            "--sspq-queue", type=sspq_queue, default=settings.BROKER_SSPQ_QUEUE, metavar="NAME",
            help="the queue that --sspq serves (default: %(default)s)",
        )  # fmt: skip
        parser.add_argument(
            "--sspq-also", type=address_and_queue, action="append", default=[], metavar="HOST:PORT=QUEUE",
            help="one more SSPQ listener, for another queue; may be given several times",
        )  # fmt: skip
        parser.add_argument("--sspq-no-dead-letters", action="store_true", help="answer DEAD_RECEIVE with NO_RECEIVE")
        parser.add_argument(
            "--processes", type=int, default=1, metavar="N", help="processes that share the ports (default: 1)"
        )
        parser.add_argument(
            "--status", type=address, metavar="HOST:PORT", help="serve /healthz, /readyz and /metrics here"
        )
        parser.add_argument("--share-ports", nargs=3, metavar=("DIRECTORY", "NUMBER", "N"), help=argparse.SUPPRESS)

    def serve(self, options: dict[str, Any]) -> None:
        sspq = [(options["sspq"], options["sspq_queue"])] if options["sspq"] else []
        options["sspq"] = sspq = [*sspq, *options["sspq_also"]]
        unguarded = {"Overhop": [options["overhop"]], "SSPQ": [where for where, _ in sspq]}
        addresses = [where for where in (options["blipmq"], *chain(*unguarded.values())) if where is not None]
        if not addresses:
            raise CommandError("Every listener is off: there is nothing to serve.")
        if options["processes"] < 1:
            raise CommandError("--processes must be 1 or more.")
        if options["processes"] > 1:
            if any(where.port == 0 for where in addresses):
                raise CommandError("With --processes the listeners need ports of their own, not 0.")
            raise SystemExit(run_processes(options["processes"], settings.BROKER_DRAIN_TIMEOUT, self.announce))
        self._warn({"BlipMQ": [options["blipmq"]]}, unguarded)
        run(self._wire_options(options), self.announce)

    def _warn(self, guarded: dict[str, list[HostPort | None]], unguarded: dict[str, list[HostPort | None]]) -> None:
        """Warn of listeners that others reach, by protocol, for want of TLS or of any guard."""
        allow_list, authority = bool(settings.BROKER_ALLOW), bool(settings.BROKER_TLS_CLIENT_CA)
        for protocol, given in (guarded | unguarded).items():
            addresses = [where for where in given if where is not None]
            warnings = check_unencrypted(protocol, addresses, tls=bool(settings.BROKER_TLS_CERT))
            if protocol in unguarded:
                warnings += check_unguarded(
                    protocol, addresses, allow_list=allow_list, client_certificates=authority
                )
            for warning in warnings:
                logger.warning("%s %s (%s)", warning.msg, warning.hint, warning.id)

    @staticmethod
    def _wire_options(options: dict[str, Any]) -> WireOptions:
        place = place_of(*options["share_ports"]) if options["share_ports"] else None
        listener = ListenerOptions(
            max_connections=settings.BROKER_MAX_CONNECTIONS,
            max_connections_per_address=settings.BROKER_MAX_CONNECTIONS_PER_ADDRESS,
            max_unauthenticated=settings.BROKER_MAX_UNAUTHENTICATED,
            partial_bytes=settings.BROKER_PARTIAL_BYTES,
            handshake_timeout=settings.BROKER_HANDSHAKE_TIMEOUT,
            idle_timeout=settings.BROKER_IDLE_TIMEOUT,
            tls=certificates(),
        )
        return WireOptions(
            engine=options_from_settings(f"runwire {os.getpid()}"),
            listener=listener,
            read_certificates=certificates,
            allow=tuple(settings.BROKER_ALLOW),
            overhop=options["overhop"],
            overhop_options=OverhopOptions(
                limits=Limits(
                    settings.BROKER_OVERHOP_UNHELLOED_MAX_LIFETIME,
                    settings.BROKER_OVERHOP_HELLOED_UNREGISTERED_MAX_LIFETIME,
                    settings.BROKER_OVERHOP_IDENT_REGISTER_TIMEOUT,
                ),
                max_envelope=settings.BROKER_OVERHOP_MAX_ENVELOPE,
                api_key=settings.BROKER_OVERHOP_API_KEY or None,
                most_queues=settings.BROKER_OVERHOP_MAX_QUEUES,
                most_subscriptions=settings.BROKER_OVERHOP_MAX_SUBSCRIPTIONS,
            ),
            blipmq=options["blipmq"],
            sspq=tuple(options["sspq"]),
            status=None if place is not None and place.number else options["status"],  # the first one's is for all
            sspq_dead_letters=not options["sspq_no_dead_letters"],
            max_frame=settings.BROKER_MAX_FRAME,
            quotas=Quotas(
                connections_per_key=settings.BROKER_MAX_CONNECTIONS_PER_KEY,
                pending_bytes=settings.BROKER_PENDING_BYTES_PER_CLIENT,
            ),
            place=place,
            drain_timeout=settings.BROKER_DRAIN_TIMEOUT,
        )
