"""Programs with nats-py, on a stream of NATS JetStream and a push consumer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import nats
from nats.js import JetStreamContext

from brokersite.rigs.bench.columns import WIDTH
from brokersite.rigs.clients.program import Work

#: Seconds for an answer: a server that syncs every message has a whole window to answer first.
PATIENCE: Final = 120.0


@asynccontextmanager
async def _jetstream(work: Work) -> AsyncIterator[JetStreamContext]:
    at = work.at
    login = {"user": at["user"], "password": at["password"]} if at["user"] else {}
    client = await nats.connect(f"nats://{at['host']}:{at['port']}", **login)
    try:
        yield client.jetstream(timeout=PATIENCE, publish_async_max_pending=work.window)
        await client.flush()
    finally:
        await client.close()


async def _subscribe(work: Work, jetstream: JetStreamContext) -> JetStreamContext.PushSubscription:
    stream, name = work.at["stream"], work.at["consumer"]
    config = (await jetstream.consumer_info(stream, name)).config
    return await jetstream.subscribe_bind(stream, config, name, manual_ack=True)


async def publish(work: Work) -> None:
    async with _jetstream(work) as jetstream:
        work.begin()
        for bodies in work.windows():
            await asyncio.gather(*[await jetstream.publish_async(work.at["stream"], body) for body in bodies])


async def consume(work: Work) -> None:
    column = bytearray()
    async with _jetstream(work) as jetstream:
        subscription = await _subscribe(work, jetstream)
        work.begin()
        async for message in subscription.messages:
            column += message.data[:WIDTH]
            await message.ack()
            if len(column) >= work.end and work.is_complete(column):
                break


async def confirm(work: Work) -> None:
    async with _jetstream(work) as jetstream:
        await work.in_tasks(lambda body: jetstream.publish(work.at["stream"], body))


async def alone(work: Work) -> None:
    async with _jetstream(work) as jetstream, _jetstream(work) as consuming:
        subscription = await _subscribe(work, consuming)

        async def handle() -> None:
            async for message in subscription.messages:
                work.arrived.set()
                await message.ack()

        await work.one_by_one(lambda body: jetstream.publish(work.at["stream"], body), handle())


async def idle(work: Work) -> None:
    async def handle(subscription: JetStreamContext.PushSubscription) -> None:
        async for message in subscription.messages:
            await message.ack()

    async with AsyncExitStack() as stack:
        jetstream = await stack.enter_async_context(_jetstream(work))
        handling = [
            asyncio.create_task(handle(await _subscribe(work, jetstream))) for _ in range(work.consumers)
        ]
        await work.watch_idle()
        for task in handling:
            task.cancel()
        await asyncio.wait(handling)
