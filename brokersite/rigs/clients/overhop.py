"""Programs with Overhop's client and its workers. A job that ran is a line in a file, as of Celery's tasks."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
from typing import Any

from brokersite.rigs.clients.program import Work
from wire.overhop.client import AsyncClient
from wire.overhop.worker import AsyncJobContext, AsyncWorker, JobContext, Worker


def _address(work: Work) -> dict[str, Any]:
    at = work.at
    tls = ssl.create_default_context(cafile=at["authority"]) if at["authority"] else None
    return {"host": at["host"], "port": at["port"], "tls": tls}


async def enqueue(work: Work) -> None:
    async with AsyncClient(**_address(work)) as client:
        work.begin()
        await client.enqueue_many(work.at["queue"], [{"n": n, "text": "x" * 64} for n in range(work.count)])


async def tasks(work: Work) -> None:
    ran = os.open(work.column, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def handle(job: AsyncJobContext) -> None:
        os.write(ran, b"%8d\n" % job.payload["n"])

    worker = AsyncWorker(**_address(work), queue=work.at["queue"], handler=handle, concurrency=work.tasks)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    work.begin()
    await worker.run()


def threads(work: Work) -> None:
    ran = os.open(work.column, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def handle(job: JobContext) -> None:
        os.write(ran, b"%8d\n" % job.payload["n"])

    worker = Worker(**_address(work), queue=work.at["queue"], handler=handle, concurrency=work.tasks)
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    work.begin()
    worker.run()
