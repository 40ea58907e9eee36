"""``manage.py runhydra``: one Hydra node."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from hydra.irc.settings import IrcServer, IrcUser, Mechanism
from hydra.options import HydraOptions, irc_account, irc_tls, settings_options
from hydra.runner import run
from hydra.transports import check
from hydra.transports.access import check_access
from hydra.transports.address import IrcAddress, parse_node_address
from queues.config import extras
from queues.errors import BrokerError
from queues.permissions.rules import Protocol
from wire.management.serving import ServerCommand, address, argument, or_off, queue_of

DEFAULT_LISTEN = "127.0.0.1:6174"


node_address = argument(parse_node_address)
queue_or_off = or_off(queue_of(Protocol.HYDRA))


class Command(ServerCommand):
    """Run one Hydra node until SIGTERM or Ctrl-C."""

    refusals = (BrokerError, OSError, ValueError)
    help = (
        "Run one Hydra node until SIGTERM or Ctrl-C. The nodes elect a leader, which holds the one connection to IRC. "
        "A database's first node, without --link, founds a network; all others need at least "
        "one --link. Addresses are HOST:PORT, udp://HOST:PORT, fifo:///DIRECTORY/NAME or irc://SERVER:PORT/NICK. "
        "Prints its listening addresses and then 'ready'."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--listen", type=node_address, action="append", metavar="ADDRESS",
            help=f"an address for other nodes; may be given several times (default: {DEFAULT_LISTEN})",
        )  # fmt: skip
        parser.add_argument(
            "--link", type=node_address, action="append", default=[], metavar="ADDRESS",
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
            "--irc", type=address, default=settings.BROKER_HYDRA_IRC or None, metavar="HOST:PORT",
            help="the IRC server that the leader connects to; a node without one leads only if no other has one",
        )  # fmt: skip
        parser.add_argument(
            "--irc-tls", action="store_true",
            help="connect to IRC with TLS; BROKER_HYDRA_IRC_TLS_CERT and _KEY are this client's certificate",
        )  # fmt: skip
        parser.add_argument(
            "--irc-sasl", type=str.upper, choices=[*Mechanism], default=settings.BROKER_HYDRA_IRC_SASL.upper() or None,
            help="log in to an account: PLAIN with BROKER_HYDRA_IRC_ACCOUNT_PASSWORD, EXTERNAL with the certificate",
        )  # fmt: skip
        parser.add_argument(
            "--irc-account", default=settings.BROKER_HYDRA_IRC_ACCOUNT, metavar="NAME",
            help="the account of --irc-sasl (default: the nick)",
        )  # fmt: skip
        parser.add_argument(
            "--irc-user", default=settings.BROKER_HYDRA_IRC_USER, metavar="NAME",
            help="the leader's user name on IRC (default: %(default)s)",
        )  # fmt: skip
        parser.add_argument(
            "--irc-realname", default=settings.BROKER_HYDRA_IRC_REALNAME, metavar="TEXT",
            help="the leader's real name on IRC (default: %(default)s)",
        )  # fmt: skip
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

    def serve(self, options: dict[str, Any]) -> None:
        chosen = self._options(options)
        uses_irc = chosen.irc is not None or any(isinstance(a, IrcAddress) for a in (*chosen.links, *chosen.listen))
        if uses_irc and (problem := extras.problem("irc")):
            raise CommandError(problem)
        for target in chosen.links:
            check(target, chosen.transport)
        for listening in chosen.listen:
            check_access(listening, chosen.transport)
        run(chosen, self.announce)

    @staticmethod
    def _options(options: dict[str, Any]) -> HydraOptions:
        listen = options["listen"] or [parse_node_address(DEFAULT_LISTEN)]
        irc = None
        if options["irc"] is not None:
            where = options["irc"]
            tls = irc_tls() if options["irc_tls"] else None
            irc = (
                IrcServer(where.host, where.port, tls, settings.BROKER_HYDRA_IRC_PASSWORD),
                IrcUser(
                    options["nick"], tuple(options["join"] or settings.BROKER_HYDRA_JOIN), options["irc_user"],
                    options["irc_realname"], account=irc_account(options),
                ),
            )  # fmt: skip
        elif options["join"]:
            raise CommandError("--join needs --irc.")
        elif options["irc_sasl"]:
            raise CommandError("--irc-sasl needs --irc.")
        return HydraOptions(
            name=options["name"] or str(listen[0]), listen=tuple(listen), links=tuple(options["link"]),
            found=options["found"], irc=irc, recv=options["recv"], send=options["send"],
            **settings_options(insecure=options["insecure"]),
        )  # fmt: skip
