"""Programs with aio-pika, on a quorum queue of RabbitMQ."""

from __future__ import annotations

import asyncio

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractQueue, AbstractRobustConnection

from brokersite.rigs.bench.columns import WIDTH
from brokersite.rigs.clients.program import Work


async def _connect(work: Work) -> AbstractRobustConnection:
    at = work.at
    return await aio_pika.connect_robust(
        host=at["host"], port=at["port"], login=at["user"], password=at["password"], virtualhost=at["vhost"]
    )


async def _queue(work: Work, channel: AbstractChannel) -> AbstractQueue:
    await channel.set_qos(prefetch_count=work.prefetch)
    return await channel.get_queue(work.at["queue"])


async def publish(work: Work) -> None:
    async with await _connect(work) as connection:
        exchange = (await connection.channel()).default_exchange
        work.begin()
        for bodies in work.windows():
            await asyncio.gather(*[exchange.publish(_message(body), work.at["queue"]) for body in bodies])


async def consume(work: Work) -> None:
    column = bytearray()
    async with await _connect(work) as connection:
        queue = await _queue(work, await connection.channel())
        async with queue.iterator() as messages:
            work.begin()
            async for message in messages:
                column += message.body[:WIDTH]
                await message.ack()
                if len(column) >= work.end and work.is_complete(column):
                    break


async def confirm(work: Work) -> None:
    async with await _connect(work) as connection:
        exchange = (await connection.channel()).default_exchange
        await work.in_tasks(lambda body: exchange.publish(_message(body), work.at["queue"]))


async def alone(work: Work) -> None:
    async with await _connect(work) as connection, await _connect(work) as consuming:
        exchange = (await connection.channel()).default_exchange
        queue = await _queue(work, await consuming.channel())

        async def handle() -> None:
            async with queue.iterator() as messages:
                async for message in messages:
                    work.arrived.set()
                    await message.ack()

        await work.one_by_one(lambda body: exchange.publish(_message(body), work.at["queue"]), handle())


async def idle(work: Work) -> None:
    async def handle(message: AbstractIncomingMessage) -> None:
        await message.ack()

    async with await _connect(work) as connection:
        for _ in range(work.consumers):
            await (await _queue(work, await connection.channel())).consume(handle)
        await work.watch_idle()


def _message(body: bytes) -> aio_pika.Message:
    return aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
