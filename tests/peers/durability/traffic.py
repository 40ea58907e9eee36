"""Peers that go on whatever happens to the broker, and what must be true of all that they have sent and been given."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage

from tests.peers.running import DELIVER, PEERS, WebBroker, ack, envelope, register
from tests.waiting import PATIENCE

#: Errors of connections that end or cannot be opened while brokers are killed.
LOST = (OSError, ConnectionClosed, InvalidHandshake, InvalidMessage, TimeoutError)
#: Envelopes between two requests for a confirmation, and most without one.
CONFIRM = 50
WINDOW = 500
RETRY = 0.05

OPTIONS: dict[str, Any] = {
    "compression": None, "max_size": None, "max_queue": None, "ping_interval": None, "open_timeout": PATIENCE,
    "close_timeout": 5,
}  # fmt: skip

Brokers = Callable[[], Sequence[WebBroker]]
#: Sender, number, delivery key.
Delivered = tuple[str, int, str]


@dataclass
class Ledger:
    """Messages sent and confirmed, and those received over each connection of each recipient."""

    sent: Counter[str] = field(default_factory=Counter)
    confirmed: Counter[str] = field(default_factory=Counter)
    received: dict[str, list[list[Delivered]]] = field(default_factory=lambda: defaultdict(list))
    #: Keys whose acknowledgement was confirmed, and the number of the connection that it was on.
    settled: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    news: asyncio.Event = field(default_factory=asyncio.Event)

    async def progress(self, count: int) -> None:
        """Wait until so many more envelopes are confirmed."""
        goal = self.confirmed.total() + count
        while self.confirmed.total() < goal:
            self.news.clear()
            await self.news.wait()

    def check(self, senders: dict[str, list[str]]) -> None:
        """Everything confirmed has come, in order, and nothing with a confirmed acknowledgement has come again.

        `senders` has the senders to each recipient.
        """
        for recipient, names in senders.items():
            connections = self.received[recipient]
            self._check_order(recipient, connections)
            firsts = self._firsts(connections)
            for name in names:
                assert firsts[name] == list(range(self.confirmed[name])), f"{name} to {recipient}"
            self._check_settled(recipient, connections)

    def _check_order(self, recipient: str, connections: list[list[Delivered]]) -> None:
        for number, connection in enumerate(connections):
            last: dict[str, int] = defaultdict(lambda: -1)
            for sender, n, _ in connection:
                assert n > last[sender], f"{recipient}, connection {number}: {n} of {sender} after {last[sender]}"
                last[sender] = n

    def _firsts(self, connections: list[list[Delivered]]) -> dict[str, list[int]]:
        seen: dict[str, dict[int, None]] = defaultdict(dict)
        for connection in connections:
            for sender, n, _ in connection:
                seen[sender].setdefault(n)
        return {sender: list(numbers) for sender, numbers in seen.items()}

    def _check_settled(self, recipient: str, connections: list[list[Delivered]]) -> None:
        for number, connection in enumerate(connections):
            for _, n, key in connection:
                assert self.settled[recipient].get(key, number) >= number, f"{key} ({n}) came again to {recipient}"


@contextlib.asynccontextmanager
async def registered(broker: WebBroker, name: str) -> AsyncIterator[ClientConnection]:
    """A connection that has been answered its register."""
    async with connect(broker.uri(), **OPTIONS) as client:
        await client.send(register(name), text=True)
        async with asyncio.timeout(PATIENCE):
            answer = await client.recv(decode=False)
        assert b'"type":"peers"' in answer, answer
        yield client


class Sender:
    """Sends numbered envelopes, again after each loss, until a `peers` has confirmed every one."""

    def __init__(
        self, brokers: Brokers, name: str, to: str, ledger: Ledger, permits: asyncio.Semaphore | None = None
    ) -> None:
        """With `permits` it takes one of them for every ten envelopes."""
        self.brokers = brokers
        self.permits = permits
        self.name = name
        self.to = to
        self.ledger = ledger
        self.losses = 0
        self._unconfirmed: deque[bytes] = deque()
        self._asked: deque[int] = deque()
        self._news = asyncio.Event()

    async def run(self, enough: Callable[[], bool]) -> None:
        """Send until it is enough, and until everything is confirmed."""
        while not enough() or self._unconfirmed:
            try:
                async with registered(random.choice(self.brokers()), self.name) as client:
                    await self._converse(client, enough)
            except LOST:
                self.losses += 1
                await asyncio.sleep(RETRY)

    async def _converse(self, client: ClientConnection, enough: Callable[[], bool]) -> None:
        self._asked.clear()
        async with asyncio.TaskGroup() as tasks:
            reader = tasks.create_task(self._read(client))
            try:
                await self._again(client)
                while not enough():
                    await self._send(client)
                await self._ask(client)
                await self._until(lambda: not self._unconfirmed, reader)
            except ConnectionClosed:
                pass
            reader.cancel()
        if self._unconfirmed:
            raise ConnectionResetError

    async def _again(self, client: ClientConnection) -> None:
        for text in tuple(self._unconfirmed):
            await client.send(text, text=True)
        await self._ask(client)

    async def _send(self, client: ClientConnection) -> None:
        if self.permits is not None:
            await self.permits.acquire()
        for _ in range(CONFIRM if self.permits is None else 10):
            n = self.ledger.sent[self.name]
            self.ledger.sent[self.name] += 1
            text = envelope(self.to, f"{self.name}:{n}", self.name, n)
            self._unconfirmed.append(text)
            await client.send(text, text=True)
        await self._ask(client)
        while len(self._unconfirmed) >= WINDOW:
            self._news.clear()
            async with asyncio.timeout(PATIENCE):
                await self._news.wait()
            if client.close_code is not None:
                return

    async def _ask(self, client: ClientConnection) -> None:
        self._asked.append(self.ledger.sent[self.name])
        await client.send(PEERS, text=True)

    async def _read(self, client: ClientConnection) -> None:
        try:
            while True:
                if found := DELIVER.fullmatch(await client.recv(decode=False)):
                    await client.send(ack(json.loads(found[1])), text=True)  # a broadcast
                    continue
                upto = self._asked.popleft()
                while self.ledger.confirmed[self.name] < upto:
                    self._unconfirmed.popleft()
                    self.ledger.confirmed[self.name] += 1
                self._news.set()
                self.ledger.news.set()
        except ConnectionClosed:
            self._news.set()

    async def _until(self, happened: Callable[[], bool], reader: asyncio.Task[None]) -> None:
        while not happened() and not reader.done():
            self._news.clear()
            await self._news.wait()


class Receiver:
    """Notes all that it is given, acknowledges some of it, and has that confirmed now and then."""

    def __init__(self, brokers: Brokers, name: str, ledger: Ledger, share: float = 0.8) -> None:
        self.brokers = brokers
        self.name = name
        self.ledger = ledger
        self.share = share
        self.losses = 0
        self.news = asyncio.Event()
        self._random = random.Random(name)

    async def run(self, enough: Callable[[], bool]) -> None:
        """Receive until it is enough and nothing more comes."""
        while not enough():
            try:
                async with registered(self._random.choice(self.brokers()), self.name) as client:
                    await self.read(client, enough)
            except LOST:
                self.losses += 1
                await asyncio.sleep(RETRY)

    async def read(self, client: ClientConnection, enough: Callable[[], bool] = lambda: False) -> None:
        """Read a connection until its end, or until it is enough and nothing more comes."""
        connections = self.ledger.received[self.name]
        number, mine = len(connections), list[Delivered]()
        connections.append(mine)
        acked: list[str] = []
        asked: deque[int] = deque()
        while True:
            try:
                async with asyncio.timeout(0.2):
                    text = await client.recv(decode=False)
            except TimeoutError:
                if enough():
                    return
                continue
            found = DELIVER.fullmatch(text)
            if found is None:
                for key in acked[: asked.popleft()]:
                    self.ledger.settled[self.name].setdefault(key, number)
                continue
            key = json.loads(found[1])
            sender, _, n = json.loads(found[2])["id"].partition(":")
            mine.append((sender, int(n), key))
            self.news.set()
            if self._random.random() < self.share:
                acked.append(key)
                await client.send(ack(key), text=True)
            if len(mine) % 50 == 0:
                asked.append(len(acked))
                await client.send(PEERS, text=True)


async def drain(broker: WebBroker, name: str, ledger: Ledger, complete: Callable[[], bool]) -> None:
    """Connect once more, and acknowledge everything until it is complete; that is durable then."""
    async with registered(broker, name) as client, asyncio.timeout(300):
        receiver = Receiver(lambda: [broker], name, ledger, share=1.0)
        await receiver.read(client, complete)
        await client.send(PEERS, text=True)
        while b'"type":"peers"' not in await client.recv(decode=False):
            pass
