"""An ASGI application for tests: a receiver that does what the client's messages say, and what it has heard, over HTTP.

``GET /NAME`` answers what the connection of ``/ws/NAME`` has heard; ``POST /NAME`` with a command as the query has it
carried out, for a client that cannot be heard. ``/plain`` is an ordinary Channels consumer.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings

from peers.server import lifespan
from peers.server.consumer import PeerbusConsumer
from peers.server.transport import Transport

settings.configure(INSTALLED_APPS=[], DATABASES={}, CHANNEL_LAYERS={})

if "daphne.server" in sys.modules:
    from peers.server import daphne

    daphne.install()
    if "DAPHNE_DEFAULT" in os.environ:  # of --websocket_timeout, which is a day
        daphne.DAY = int(os.environ["DAPHNE_DEFAULT"])  # type: ignore[misc]
    if "LINGER" in os.environ:
        daphne.DaphneProtocol.closeHandshakeTimeout = float(os.environ["LINGER"])

receivers: dict[str, Scripted] = {}


class Scripted:
    """A receiver that carries out commands: a word and its arguments, as its methods have them."""

    def __init__(self, transport: Transport, scope: Mapping[str, Any]) -> None:
        self.transport = transport
        self.heard: list[Any] = []
        self.bytes_in = 0
        self.drains = 0
        self.is_closed = False
        self.name = scope["path"].rpartition("/")[2]
        receivers[self.name] = self
        if self.name.startswith("fails-at-once"):
            raise LookupError("no session today")
        if self.name.startswith("refused"):
            transport.close(1013, "try again later")

    def texts_received(self, texts: Sequence[bytes]) -> None:
        for text in texts:
            if self.is_closed:
                return
            self.bytes_in += len(text)
            self.heard.append(text[:40].decode(errors="replace"))
            word, _, rest = text.decode().partition(" ")
            if command := getattr(self, f"do_{word}", None):
                command(rest)

    def binary_received(self) -> None:
        self.heard.append(None)

    def drained(self) -> None:
        self.drains += 1
        if self.name.startswith("fails-when-drained"):
            raise LookupError("drained")

    def failed(self, event: str) -> None:
        self.heard.append(f"FAILED {event}")
        traceback.print_exc()

    def connection_lost(self) -> None:
        self.heard.append("LOST")

    def do_close(self, arguments: str) -> None:
        code, _, reason = arguments.partition(" ")
        self.is_closed = True
        self.transport.close(int(code), reason)
        self.heard.append("closed")  # comes before LOST

    def do_closetwice(self, arguments: str) -> None:
        self.is_closed = True
        self.transport.close(4000, "first")
        self.transport.close(4001, "second")
        self.transport.send([b"too late"])

    def do_echo(self, arguments: str) -> None:
        self.transport.send([arguments.encode()])

    def do_send(self, arguments: str) -> None:
        count, size = map(int, arguments.split())
        self.transport.send([b"%06d" % number + b"x" * (size - 6) for number in range(count)])

    def do_pause(self, arguments: str) -> None:
        self.transport.pause_reading()
        self.transport.pause_reading()

    def do_resume(self, arguments: str) -> None:
        self.transport.resume_reading()

    def do_fail(self, arguments: str) -> None:
        raise LookupError("as told")

    def state(self) -> dict[str, Any]:
        return {
            "heard": self.heard,
            "bytes_in": self.bytes_in,
            "drains": self.drains,
            "unsent": self.transport.unsent,
        }


class Plain(AsyncWebsocketConsumer):
    """Nothing but Channels: echoes, and closes as told."""

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        if text_data == "fail":
            raise LookupError("as told")
        if text_data is not None and text_data.startswith("close "):
            _, code, reason = text_data.split(" ", 2)
            await self.close(int(code), reason)
        elif text_data == "close":
            await self.close()
        else:
            await self.send(text_data=text_data, bytes_data=bytes_data)


async def note(word: str) -> None:
    """Write a line that the test finds, with how many connections still stand."""
    standing = sum("LOST" not in receiver.heard for receiver in receivers.values())
    with Path(os.environ["NOTES"]).open("a") as notes:
        notes.write(f"{word} {standing}\n")


async def fail() -> None:
    raise LookupError("a callback that fails")


async def first() -> None:
    await note("first")


async def second() -> None:
    await note("second")


async def hold() -> None:
    """Wait until the test has made a file."""
    while not os.path.exists(os.environ["HOLD"]):  # noqa: ASYNC240 - it is there or not
        await asyncio.sleep(0.01)


if "NOTES" in os.environ:
    lifespan.on_shutdown += [first, fail, second]
if "HOLD" in os.environ:
    lifespan.on_shutdown.append(hold)


async def answer(scope: dict[str, Any], send: Any) -> None:
    receiver = receivers.get(scope["path"].lstrip("/"))
    if receiver is not None and scope["method"] == "POST":
        receiver.texts_received([unquote(scope["query_string"].decode()).encode()])
    body = json.dumps(receiver and receiver.state()).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": body})


peerbus = PeerbusConsumer.as_asgi(make_session=Scripted)


async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        await lifespan.application(scope, receive, send)
    elif scope["type"] == "http":
        await answer(scope, send)
    elif scope["path"] == "/plain":
        await Plain.as_asgi()(scope, receive, send)  # type: ignore[arg-type]
    else:
        await peerbus(scope, receive, send)  # type: ignore[arg-type]
