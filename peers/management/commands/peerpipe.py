"""``manage.py peerpipe``: peerbus over standard input and output."""

from __future__ import annotations

import os
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from peers.codec.envelope import MAX_FRAME
from peers.management.peering import add_url_argument, checked_url, explained, given_token
from peers.pipe import Pipe
from queues.management.shell import REFUSED


class Command(BaseCommand):
    """Bridge lines of JSON to peerbus and back."""

    help = (
        "Bridge standard input and output to a peerbus WebSocket: each line is a frame, in both directions, byte for "
        "byte. The first line is your register. The end of input closes the connection. Exit status: 0 at the end of "
        "input, 1 when the broker closes (its reason is on standard error), 2 usage, 130 interrupted."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        add_url_argument(parser)
        token = parser.add_mutually_exclusive_group()
        token.add_argument("--token", metavar="KEY", help="put into the register if that has no token; ps shows it")
        token.add_argument("--token-file", metavar="FILE", help="a file with the token")

    def handle(self, *args: Any, **options: Any) -> None:
        with explained():
            try:
                self._bridge(checked_url(options["url"]), given_token(options))
            except WebSocketException as error:
                raise CommandError(f"No WebSocket there: {error}", returncode=REFUSED) from error
            except BrokenPipeError:  # the reader of our output has ended; buffered output is dropped
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    @staticmethod
    def _bridge(url: str, token: str | None) -> None:
        def write(data: bytes) -> None:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()

        # Not `sys.stdin`, nor closed: either would wait for the thread that waits for input.
        lines = os.fdopen(sys.stdin.fileno(), "rb", closefd=False)
        with connect(url, compression=None, max_size=MAX_FRAME) as connection:
            Pipe(connection, lines.readline, write, token).run()
