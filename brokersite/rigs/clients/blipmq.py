"""Programs with BlipMQ's client for asyncio."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import AsyncExitStack

from brokersite.rigs.bench.columns import WIDTH
from brokersite.rigs.clients.program import Work
from wire.blipmq.client import AsyncClient


def _client(work: Work) -> AsyncClient:
    at = work.at
    tls = ssl.create_default_context(cafile=at["authority"]) if at["authority"] else None
    return AsyncClient(at["host"], at["port"], at["key"], tls=tls)


async def publish(work: Work) -> None:
    async with _client(work) as client:
        work.begin()
        for bodies in work.windows():
            await client.publish_many(work.at["topic"], bodies)
            await client.flush()


async def consume(work: Work) -> None:
    column = bytearray()
    async with _client(work) as client:
        work.begin()
        async for message in client.messages(work.at["subscription"], prefetch=work.prefetch):
            column += message.body[:WIDTH]
            await client.ack(message)
            if len(column) >= work.end and work.is_complete(column):
                break


async def confirm(work: Work) -> None:
    async with _client(work) as client:

        async def publish_one(body: bytes) -> None:
            await client.publish(work.at["topic"], body, confirm=True)

        await work.in_tasks(publish_one)


async def alone(work: Work) -> None:
    async with _client(work) as client, _client(work) as consuming:

        async def publish_one(body: bytes) -> None:
            await client.publish(work.at["topic"], body, confirm=True)

        async def handle() -> None:
            async for message in consuming.messages(work.at["subscription"], prefetch=work.prefetch):
                work.arrived.set()
                await consuming.ack(message)

        await work.one_by_one(publish_one, handle())


async def idle(work: Work) -> None:
    async def handle(client: AsyncClient) -> None:
        async for message in client.messages(work.at["subscription"]):
            await client.ack(message)

    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(_client(work)) for _ in range(work.consumers)]
        handling = [asyncio.create_task(handle(client)) for client in clients]
        await work.watch_idle()
        for task in handling:
            task.cancel()
        await asyncio.wait(handling)
