"""A driver's open links, its listeners and its dials.

Links have numbers, by which the node knows them. A transport tells of the bytes and the end of a link; those become
events of the node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from hydra.protocol.node import Node
from hydra.transports import dial, listen
from hydra.transports.address import NodeAddress, parse_node_address
from hydra.transports.base import Accept, Handler, LinkListener, TransportError, TransportLink, TransportOptions

#: Bytes that the node takes at a time: heartbeats leave in time also while a neighbour floods.
PIECE: Final = 4096


@dataclass(eq=False)
class OpenLinks:
    """The links of one driver."""

    options: TransportOptions
    node: Node
    #: Gives the node an event (`Driver.tell`).
    tell: Callable[..., None]
    #: For operators.
    happened: Callable[[str, str], None]
    listeners: list[LinkListener] = field(default_factory=list)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _links: dict[int, TransportLink] = field(default_factory=dict)
    #: Links that their transport is still opening.
    _unopened: set[int] = field(default_factory=set)
    _last_number: int = 0
    _silent: bool = False
    #: The dials under way, by target: a neighbour would accept every link that is opened to it.
    _dials: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    #: Targets whose last dial has failed: reported once.
    _unreachable: set[str] = field(default_factory=set)

    # Life.

    async def listen(self, addresses: Iterable[NodeAddress]) -> None:
        """Listen on all addresses. Raises TransportError; then none is listened on."""
        try:
            for address in addresses:
                self.listeners.append(await listen(address, self.options, partial(self._accept, None)))
        except BaseException:
            await self._close_listeners()
            raise

    def silence(self) -> None:
        """Close all links before this returns, and open no more."""
        self._silent = True
        for link in self._links.values():
            link.close()
        self._links.clear()

    async def stop(self) -> None:
        """Close the listeners, and end the dials."""
        await self._close_listeners()
        dials = list(self._dials.values())
        for task in dials:
            task.cancel()
        await asyncio.gather(*dials, return_exceptions=True)

    async def _close_listeners(self) -> None:
        listeners, self.listeners = self.listeners, []
        for listener in listeners:
            await listener.close()

    # Opening.

    def _accept(self, target: str | None, link: TransportLink) -> Handler | None:
        if self._silent:
            return None
        self._last_number += 1
        number = self._last_number
        self._links[number] = link
        self._unopened.add(number)
        self.happened("link opened", f"to {target}" if target is not None else f"from {link.origin}")
        # The transport is still opening the link: a message can be sent in the next turn of the loop.
        self._loop.call_soon(self._opened, number, target, link.origin)
        return Handler(partial(self.received, number), partial(self.lost, number))

    def _opened(self, number: int, target: str | None, origin: str) -> None:
        self._unopened.discard(number)
        if number in self._links:
            self.tell(partial(self.node.link_opened, target=target, origin=origin), number)

    def dial(self, target: str) -> None:
        """Open a link to an address, unless a dial is under way."""
        if target in self._dials:
            return
        task = self._loop.create_task(self._dial(target), name=f"hydra dials {target}")
        self._dials[target] = task
        task.add_done_callback(lambda _: self._dials.pop(target, None))

    async def _dial(self, target: str) -> None:
        opened: Accept = partial(self._accept, target)
        try:
            await dial(parse_node_address(target), self.options, opened, listeners=self.listeners)
        except (TransportError, OSError) as error:
            if target not in self._unreachable:
                self._unreachable.add(target)
                self.happened("link failed", f"to {target}: {error}")
            self.tell(self.node.tick)
        else:
            self._unreachable.discard(target)

    # Bytes.

    def name(self, number: int) -> str:
        """A link for logs."""
        link = self._links.get(number)
        return f"link {number}" if link is None else f"link {number} with {link.origin}"

    def received(self, number: int, data: bytes) -> None:
        """Bytes have come over a link."""
        if number in self._unopened:
            self._loop.call_soon(self.received, number, data)
            return
        for start in range(0, len(data), PIECE):
            if number not in self._links:
                return
            piece = data[start : start + PIECE]
            self.tell(self.node.data_received, number, piece, unit=self.name(number), link=number)

    def write(self, number: int, data: bytes) -> None:
        """Send lines over a link, if it is open."""
        if (link := self._links.get(number)) is not None:
            link.write(data)

    # Closing.

    def lost(self, number: int, reason: str) -> None:
        """The other side or the network has closed a link."""
        if self._links.pop(number, None) is not None:
            self.happened("link closed", reason)
            self.tell(self.node.link_closed, number)

    def close(self, number: int, reason: str) -> None:
        """Close a link that the node knows to be closed."""
        if (link := self._links.pop(number, None)) is not None:
            self.happened("link closed", reason)
            link.close()

    def end(self, number: int, reason: str) -> None:
        """Close a link, and tell the node."""
        self.close(number, reason)
        self.tell(self.node.link_closed, number)
