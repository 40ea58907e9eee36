"""Ends of links that note what comes, and a way to run a test on both event loops."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, cast

import pytest

from hydra.transports import dial, listen
from hydra.transports.address import NodeAddress, parse_node_address
from hydra.transports.base import Handler, LinkListener, TransportLink, TransportOptions
from tests.wire.serving import EVENT_LOOPS, run_scenario

OPTIONS = TransportOptions(connect_timeout=60.0, proof_timeout=60.0)
LOCAL_TCP = "127.0.0.1:0"
LOCAL_UDP = "udp://127.0.0.1:0"


def on_both_loops(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an asynchronous test once on each event loop, and bound it."""

    @pytest.mark.parametrize("event_loop", EVENT_LOOPS)
    @functools.wraps(test)
    def wrapped(event_loop: str, **fixtures: Any) -> None:
        run_scenario(event_loop, _closing_links(test(**fixtures)))

    parameters = list(inspect.signature(test).parameters.values())
    own = inspect.Parameter("event_loop", inspect.Parameter.KEYWORD_ONLY)
    run: Any = wrapped
    run.__signature__ = inspect.Signature([*parameters, own])
    return cast(Callable[..., None], run)


_ends: list[End] = []


async def _closing_links(scenario: Coroutine[Any, Any, None]) -> None:
    """Carry a test out and close its links: to warn of open ones, with warnings as errors, is too much for uvloop."""
    try:
        await scenario
    finally:
        while _ends:
            _ends.pop().link.close()
        await asyncio.sleep(0)


class End:
    """The handler of a link."""

    def __init__(self, link: TransportLink) -> None:
        _ends.append(self)
        self.link = link
        self.data = b""
        self.reason: str | None = None
        self._news = asyncio.Event()

    @property
    def handler(self) -> Handler:
        """What the link calls; a test may replace the methods."""
        return Handler(lambda data: self.received(data), lambda reason: self.closed(reason))

    def received(self, data: bytes) -> None:
        assert self.reason is None, "something was received after the end"
        self.data += data
        self._news.set()

    def closed(self, reason: str) -> None:
        assert self.reason is None, "the end came twice"
        self.reason = reason
        self._news.set()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._news.clear()
            await self._news.wait()

    async def hears(self, data: bytes) -> None:
        """Wait until exactly this has come."""
        await self._until(lambda: len(self.data) >= len(data) or self.reason is not None)
        assert self.data == data

    async def over(self) -> str:
        """Wait for the end of the link, and return why it came."""
        await self._until(lambda: self.reason is not None)
        assert self.reason is not None
        return self.reason


class Door:
    """Takes in the links that are opened, or refuses them."""

    def __init__(self) -> None:
        self.ends: asyncio.Queue[End] = asyncio.Queue()
        self.refuses = False
        self.refused: list[TransportLink] = []
        self.greeting = b""

    def __call__(self, link: TransportLink) -> Handler | None:
        if self.refuses:
            self.refused.append(link)
            return None
        end = End(link)
        if self.greeting:
            link.write(self.greeting)
        self.ends.put_nowait(end)
        return end.handler

    async def end(self) -> End:
        """Wait for the next link."""
        return await self.ends.get()


async def dialled(address: str, options: TransportOptions = OPTIONS, *listeners: LinkListener) -> End:
    """Dial, and return this side's end of the link."""
    door = Door()
    await dial(parse_node_address(address), options, door, listeners=listeners)
    return door.ends.get_nowait()


@contextlib.asynccontextmanager
async def listening(
    address: NodeAddress | str, options: TransportOptions = OPTIONS
) -> AsyncIterator[tuple[LinkListener, Door]]:
    """Listen, and yield the listener with what it accepts."""
    door = Door()
    listener = await listen(parse_node_address(address) if isinstance(address, str) else address, options, door)
    try:
        yield listener, door
    finally:
        await listener.close()


def descriptors() -> set[str]:
    """The open file descriptors of this process, with what they are; uvloop keeps one for bad times, on /dev/null."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the directory itself
            found.add(f"{fd} {os.readlink(f'/proc/self/fd/{fd}')}")
    return {each for each in found if "/proc/" not in each and "/dev/null" not in each}


@contextlib.asynccontextmanager
async def nothing_left_open() -> AsyncIterator[None]:
    """All file descriptors opened inside are closed at the end, or soon after."""
    loop = asyncio.get_running_loop()
    await loop.getaddrinfo("127.0.0.1", 1)  # starts the loop's threads
    before = descriptors()
    yield
    until = loop.time() + 60
    while left := descriptors() - before:
        assert loop.time() < until, f"left open: {left}"
        await asyncio.sleep(0.005)  # nothing tells of it
