"""``manage.py runhydra``: one Hydra node."""

from __future__ import annotations

import argparse
import ssl
from typing import Any

import psycopg
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from hydra.irc.settings import IrcServer, IrcUser
from hydra.options import HydraOptions, settings_options
from hydra.runner import run
from hydra.transports import check
from hydra.transports.access import check_access
from hydra.transports.address import IrcAddress, NodeAddress, NodeAddressError, parse_node_address
from queues import extras
from queues.addresses import queue_problem
from queues.errors import BrokerError
from queues.reach import Operation, Protocol
from wire.net.address import AddressError, parse_address

DEFAULT_LISTEN = "127.0.0.1:6174"


def address(text: str) -> NodeAddress:
    """An argument that is a node's address."""
    try:
        return parse_node_address(text)
    except NodeAddressError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def server(text: str) -> tuple[str, int]:
    """An argument HOST:PORT."""
    try:
        where = parse_address(text)
    except AddressError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return where.host, where.port


def queue_or_off(text: str) -> str | None:
    """An argument that is a queue's name, or the word off."""
    if problem := queue_problem(text, Protocol.HYDRA, Operation.CONSUME):
        raise argparse.ArgumentTypeError(f"{text}: {problem}")
    return None if text == "off" else text


class Command(BaseCommand):
    """Run one Hydra node until SIGTERM or Ctrl-C."""

    help = (
        "Run one Hydra node until SIGTERM or Ctrl-C. The nodes elect a leader, which holds the one connection to IRC. "
        "A database's first node, without --link, founds a network; all others need at least "
        "one --link. Addresses are HOST:PORT, udp://HOST:PORT, fifo:///DIRECTORY/NAME or irc://SERVER:PORT/NICK. "
        "Prints its listening addresses and then 'ready'."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--listen", type=address, action="append", metavar="ADDRESS",
            help=f"an address for other nodes; may be given several times (default: {DEFAULT_LISTEN})",
        )  # fmt: skip
        parser.add_argument(
            "--link", type=address, action="append", default=[], metavar="ADDRESS",
            help="a node to connect to; may be given several times",
        )  # fmt: skip
        parser.add_argument("--name", help="the stable name of this node, the key of its promises (default: --listen)")
        parser.add_argument(
            "--found", action="store_true",
            help="begin a network, unless the node was in one: for one node only, at its first start",
        )  # fmt: skip
        parser.add_argument(
            "--insecure", action="store_true",
            help="listen beyond loopback without a secret or certificates, on a network of nodes only",
        )  # fmt: skip
        parser.add_argument(
            "--irc", type=server, default=settings.BROKER_HYDRA_IRC or None, metavar="HOST:PORT",
            help="the IRC server that the leader connects to; a node without one leads only if no other has one",
        )  # fmt: skip
        parser.add_argument("--irc-tls", action="store_true", help="connect to IRC with TLS")
        parser.add_argument(
            "--nick", default=settings.BROKER_HYDRA_NICK, help="the leader's nick on IRC (default: %(default)s)"
        )
        parser.add_argument(
            "--join", action="append", metavar="CHANNEL",
            help="a channel that the leader joins; may be given several times",
        )  # fmt: skip
        parser.add_argument(
            "--recv", type=queue_or_off, default="hydra.recv", metavar="QUEUE|off",
            help="the queue of lines from IRC (default: %(default)s)",
        )  # fmt: skip
        parser.add_argument(
            "--send", type=queue_or_off, default="hydra.send", metavar="QUEUE|off",
            help="the queue of lines for IRC (default: %(default)s)",
        )  # fmt: skip

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            chosen = self._options(options)
            uses_irc = chosen.irc is not None or any(isinstance(a, IrcAddress) for a in (*chosen.links, *chosen.listen))
            if uses_irc and (problem := extras.problem("irc")):
                raise CommandError(problem)
            for address in chosen.links:
                check(address, chosen.transport)
            for address in chosen.listen:
                check_access(address, chosen.transport)
            run(chosen, self._say)
        except psycopg.OperationalError as error:
            raise CommandError(f"The database cannot be reached: {str(error).strip()}") from error
        except (BrokerError, OSError, ValueError) as error:
            raise CommandError(str(error)) from error

    def _say(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()

    @staticmethod
    def _options(options: dict[str, Any]) -> HydraOptions:
        listen = options["listen"] or [parse_node_address(DEFAULT_LISTEN)]
        irc = None
        if options["irc"] is not None:
            host, port = options["irc"]
            tls = ssl.create_default_context() if options["irc_tls"] else None
            irc = (
                IrcServer(host, port, tls, settings.BROKER_HYDRA_IRC_PASSWORD),
                IrcUser(options["nick"], tuple(options["join"] or settings.BROKER_HYDRA_JOIN)),
            )
        elif options["join"]:
            raise CommandError("--join needs --irc.")
        return HydraOptions(
            name=options["name"] or str(listen[0]), listen=tuple(listen), links=tuple(options["link"]),
            found=options["found"], irc=irc, recv=options["recv"], send=options["send"],
            **settings_options(insecure=options["insecure"]),
        )  # fmt: skip
