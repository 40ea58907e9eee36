"""``manage.py peer``: a peer of peerbus at the terminal."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import transaction

from peers.client import Message, PeerClient
from peers.codec.signing import canonical
from peers.management.peering import add_peer_arguments, explained, peer_options
from queues.management.shell import USAGE, SubcommandCommand, number, seconds
from queues.operations import mailboxes
from queues.operations.audit_log import record, shell_operator


class Command(SubcommandCommand):
    """Send, listen and list as a peer; free and disconnect as an operator, with the database and without a token."""

    help = (
        "Speak peerbus at the terminal (send, listen, list), or see to its peers in the database (free, disconnect). "
        "Exit status: 0 done, 1 refused, unreachable or not confirmed, 2 usage, 130 interrupted."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        do = parser.add_subparsers(dest="do", required=True, metavar="send|listen|list|free|disconnect")
        send = do.add_parser("send", help="send a message, and wait until it is stored; prints its id")
        listen = do.add_parser("listen", help="print each message as a line of JSON, and acknowledge it; until Ctrl-C")
        listing = do.add_parser("list", help="list the connected peers, this command included")
        for one in (send, listen, listing):
            add_peer_arguments(one)
        send.add_argument("to", metavar="TO", help="a peer's name, queue:NAME, topic:NAME, or * for all connected")
        send.add_argument("body", nargs="?", metavar="BODY", help="JSON; standard input without it")
        send.add_argument("--text", action="store_true", help="the body is a text, not JSON")
        send.add_argument("--id", metavar="ID", help="of a message that is sent again; the broker takes it once")
        listen.add_argument("--count", type=number(1), metavar="N", help="end after so many messages")
        listen.add_argument("--timeout", type=seconds, metavar="S", help="end when nothing has come for so long")
        listing.add_argument("--json", action="store_true", help="as a JSON list")
        free = do.add_parser("free", help="let the next API key take a name with its messages; ends the connection")
        free.add_argument("--yes", action="store_true", help="do not ask")
        disconnect = do.add_parser("disconnect", help="end a peer's connection; it may come back, and nothing is lost")
        for one in (free, disconnect):
            one.add_argument("peer", metavar="NAME", help="the peer's name")

    def handle(self, *args: Any, **options: Any) -> None:
        with explained():
            super().handle(*args, **options)

    def do_send(self, options: dict[str, Any]) -> None:
        given = peer_options(options)
        body = self._body(options)
        with PeerClient(**given) as peer:
            self.say(peer.send(options["to"], body, id=options["id"], confirm=True))

    def do_listen(self, options: dict[str, Any]) -> None:
        left: int | None = options["count"]
        # Ctrl-C ends listening. A printed message is acknowledged, or comes again.
        with suppress(KeyboardInterrupt), PeerClient(**peer_options(options)) as peer:
            while left != 0 and (message := peer.receive(options["timeout"])) is not None:
                self.say(_line(message))
                self.stdout.flush()
                peer.ack(message)
                left = None if left is None else left - 1

    def do_list(self, options: dict[str, Any]) -> None:
        with PeerClient(**peer_options(options)) as peer:
            names = peer.peers()
        if options["json"]:
            self.say_json(names)
        else:
            for name in names:
                self.say(name)

    def do_free(self, options: dict[str, Any]) -> None:
        name = options["peer"]
        owner = mailboxes.get_mailbox(name).owner
        whose = f"belongs to the API key {owner}" if owner is not None else "has no owner already"
        self.ask(f"{name} {whose}. Let the next key have it, with the envelopes that wait?", options["yes"])
        with transaction.atomic():
            ended = mailboxes.free_name(name)
            record(shell_operator(), "free", f"peer:{name}")
        self.say(f"freed {name}, which was connected" if ended else f"freed {name}")

    def do_disconnect(self, options: dict[str, Any]) -> None:
        with transaction.atomic():
            mailboxes.disconnect(options["peer"])
            record(shell_operator(), "disconnect", f"peer:{options['peer']}")
        self.say(f"disconnected {options['peer']}")

    @staticmethod
    def _body(options: dict[str, Any]) -> Any:
        text: str = sys.stdin.read() if options["body"] is None else options["body"]
        if options["text"]:
            return text
        try:
            return json.loads(text.removeprefix("\ufeff"))  # editors write byte order marks
        except ValueError as error:
            raise CommandError(f"The body is no JSON: {error}. With --text it need not be.", returncode=USAGE) from None


def _line(message: Message) -> str:
    """The message without its signature; the body as it was sent."""
    envelope = message.envelope
    fields = {
        "protocol_version": envelope.protocol_version, "id": envelope.id, "from": envelope.sender, "to": envelope.to,
        "ts": envelope.ts, "source": envelope.source, "kind": envelope.kind,
    }  # fmt: skip
    return canonical(fields, envelope.raw_body).decode()
