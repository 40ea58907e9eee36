"""``manage.py peermcp``: peerbus for the host of a language model."""

from __future__ import annotations

import asyncio
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from peers.client import AsyncPeerClient
from peers.management.peering import add_peer_arguments, explained, peer_options
from queues.config import extras
from queues.management.shell import USAGE


class Command(BaseCommand):
    """An MCP server on standard input and output whose tools are a peer's."""

    help = (
        "Serve the Model Context Protocol on standard input and output, with the tools send, broadcast, peers and "
        "drain. Exit status: 0 at the end of input, 1 rejected or unreachable, 2 usage, 130 interrupted."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        add_peer_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        if problem := extras.problem("mcp"):
            raise CommandError(problem, returncode=USAGE)
        from peers.mcp_server import serve

        with explained():
            asyncio.run(serve(AsyncPeerClient(**peer_options(options))))
