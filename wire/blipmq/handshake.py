"""HELLO and AUTH of one BlipMQ connection: the version, the key, and what the key allows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final, TypeVar

from queues.engine.api import Broker, Grant, StoreUnavailable
from queues.permissions.rules import Operation, Protocol
from wire.blipmq import codec
from wire.server import Server
from wire.session import WireSession

#: Seconds between two questions to a store that is away.
STORE_RETRY: Final = 0.05

T = TypeVar("T")


class Handshake:
    """What is known of a connection's client."""

    __slots__ = ("_address", "_server", "_shown", "grant")

    def __init__(self, server: Server, address: str) -> None:
        self._server = server
        self._address = address
        #: None until a key was accepted.
        self.grant: Grant | None = None
        #: The accepted key, to show to another process.
        self._shown = ""

    async def authenticate(self, key: str, session: WireSession) -> codec.Reject | None:
        """Look up an API key, and count the session as one of it. Returns why it is refused, if it is."""
        engine = self._server.engine
        try:
            grant = await patiently(engine, lambda: engine.authenticate(key, Protocol.BLIPMQ, self._address))
        except StoreUnavailable as error:
            return codec.Reject(500, str(error))
        if grant is None:
            return codec.INVALID_API_KEY
        if not self._server.admit(grant.id, session):
            return codec.TOO_MANY_CONNECTIONS
        self.grant, self._shown = grant, key
        return None

    async def penalty(self) -> None:
        """Wait before a version or a key is refused: an address that goes on trying waits longer and longer."""
        await asyncio.sleep(self._server.throttle.failed(self._address))

    def take_key(self) -> str:
        """The accepted key, once."""
        key, self._shown = self._shown, ""
        return key

    @property
    def key_id(self) -> int:
        """The id of the accepted key."""
        assert self.grant is not None
        return self.grant.id

    def allows(self, operation: Operation, topic: bytes) -> bool:
        """Whether the key allows this with a topic."""
        assert self.grant is not None
        return self.grant.may(Protocol.BLIPMQ, operation, "topic", topic)

    def forget(self, session: WireSession) -> None:
        """The session has ended."""
        if self.grant is not None:
            self._server.by_key.forget(self.grant.id, session)


async def patiently(engine: Broker, ask: Callable[[], Awaitable[T]]) -> T:
    """Ask the store, and again while it is away: until then the client is not read. Raises StoreUnavailable."""
    deadline = monotonic() + engine.options.publish_timeout
    while True:
        try:
            return await ask()
        except StoreUnavailable:
            if monotonic() > deadline:
                raise
            await asyncio.sleep(STORE_RETRY)
