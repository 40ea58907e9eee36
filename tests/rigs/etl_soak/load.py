"""A steady load from clients of several protocols, as a process: ``python -m tests.rigs.etl_soak.load CONFIG``.

CONFIG is JSON: `kind` (blipmq or mixed), `name` (of the topic), `key`, and the ports by protocol. On standard input
come messages a second, a number a line, or `full`: as many as are settled. At its end the process ends. The load
settles most of what it publishes, and some of it becomes dead letters.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import sys
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

import django

from tests.rigs.etl_soak.names import JOBS, ORDERS
from wire.blipmq import client as blipmq
from wire.overhop.client import Client as OverhopClient
from wire.overhop.job_context import AsyncJobContext
from wire.overhop.worker import AsyncWorker
from wire.sspq import client as sspq

HOST = "127.0.0.1"
#: Messages of one go, at most.
BURST = 400
BODY = b'{"text": "' + 84 * b"x" + b'"}'
#: Of so many messages one is not acknowledged, whatever the protocol.
FORGOTTEN = 50
TICK = 0.05
SILENCE = 120.0
#: The parts of a mixed load: jobs of Overhop, Django's transactions, SSPQ.
SHARES = (0.5, 0.3, 0.2)


class PublishRate:
    """The pace of a client's publishes: `rate` a second, or without limit when that is None."""

    def __init__(self, share: float = 1.0) -> None:
        self.rate: float | None = 0.0
        self.ended = threading.Event()
        self._share = share
        self._saved = 0.0
        self._at = monotonic()

    def take(self) -> int:
        """The number that may go now; waits a moment if there are none."""
        if self.rate is None:
            return BURST
        now = monotonic()
        self._saved = min(BURST, self._saved + (now - self._at) * self.rate * self._share)
        self._at = now
        count = int(self._saved)
        self._saved -= count
        if not count:
            self.ended.wait(TICK)
        return count


def follow(paces: list[PublishRate]) -> None:
    """Do what standard input says until it ends."""
    for line in sys.stdin:
        for pace in paces:
            pace.rate = None if line.strip() == "full" else float(line)
    for pace in paces:
        pace.ended.set()


def blip(port: int, key: str, topic: str, pace: PublishRate, ready: Callable[[list[int]], None]) -> None:
    """A topic with two subscriptions: one acknowledges everything, the other forgets some."""
    chance = random.Random(topic)
    with blipmq.Client(HOST, port, key, timeout=SILENCE, reconnect=False) as client:
        steady, forgetful = (client.subscribe(topic) for _ in range(2))
        ready([steady, forgetful])
        while not pace.ended.is_set():
            client.publish_many(topic, [BODY] * pace.take())
            with contextlib.suppress(blipmq.NackError):  # an acknowledgement that came too late
                client.flush()
                client.ack(*client.poll_many(steady, BURST))
                got = client.poll_many(forgetful, BURST)
                client.ack(*(message for message in got if chance.randrange(FORGOTTEN)))


def enqueue_jobs(port: int, pace: PublishRate) -> None:
    """Jobs, of which each is answered before the next ones go."""
    number = 0
    with OverhopClient(HOST, port, timeout=SILENCE, reconnect=False) as client:
        while not pace.ended.is_set():
            count = pace.take()
            client.enqueue_many(JOBS, [{"number": number + n} for n in range(count)])
            number += count


async def do_job(job: AsyncJobContext) -> Any:
    """Some jobs fail, and have no other attempt."""
    if isinstance(job.payload, dict) and job.payload.get("number", 1) % FORGOTTEN == 0:
        raise ValueError("this one fails")
    return {"done": True}


def work(port: int, ended: threading.Event) -> None:
    """Do the jobs of both queues."""
    worker = AsyncWorker(HOST, port, {JOBS: do_job, ORDERS: do_job}, concurrency=100, timeout=SILENCE, reconnect=False)

    def stop() -> None:
        ended.wait()
        worker.stop()

    threading.Thread(target=stop, daemon=True).start()
    asyncio.run(worker.run())


def order(pace: PublishRate) -> None:
    """Publish in Django's transactions, of which some are rolled back."""
    from django.db import connection, transaction

    from queues.api import Outgoing, publish_many

    chance = random.Random(1)
    while not pace.ended.is_set():
        if not (count := pace.take()):
            continue
        with transaction.atomic():
            publish_many("queue:" + ORDERS, [Outgoing(body=BODY, content_type="application/json")] * count)
            transaction.set_rollback(chance.randrange(8) == 0)
    connection.close()


def sspq_peer(port: int, pace: PublishRate) -> None:
    """Send, receive and confirm; what is poison is not confirmed, and has no second delivery."""
    number = 0
    while not pace.ended.is_set():
        with sspq.Client(HOST, port, timeout=SILENCE, reconnect=False) as client:
            while not pace.ended.is_set():
                for _ in range(pace.take()):
                    number += 1
                    poison = number % FORGOTTEN == 0
                    client.send(b"poison" if poison else BODY, retries=0 if poison else 3)
                if not _receive(client):
                    break


def _receive(client: sspq.Client) -> bool:
    """Confirm what is there; False when the connection is to end with a message unconfirmed."""
    while (message := client.receive(TICK)) is not None:
        if message.payload == b"poison":
            return False
        client.confirm()
    return True


class ClientThreads:
    """The clients of this process, each a thread; one that fails ends the process."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.paces: list[PublishRate] = []

    def run(self) -> None:
        starts = self._blipmq() if self.config["kind"] == "blipmq" else self._mixed()
        threads = [threading.Thread(target=self._guarded, args=(start,), daemon=True) for start in starts]
        for thread in threads:
            thread.start()
        follow(self.paces)
        for thread in threads:
            thread.join(SILENCE)

    def _guarded(self, start: Callable[[], None]) -> None:
        try:
            start()
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)

    def _blipmq(self) -> list[Callable[[], None]]:
        config = self.config
        self.paces = [PublishRate()]
        return [lambda: blip(config["blipmq"], config["key"], config["name"], self.paces[0], say)]

    def _mixed(self) -> list[Callable[[], None]]:
        jobs, orders, letters = self.paces = [PublishRate(share) for share in SHARES]
        port = self.config["overhop"]
        say([])
        return [
            lambda: enqueue_jobs(port, jobs), lambda: work(port, jobs.ended), lambda: order(orders),
            lambda: sspq_peer(self.config["sspq"], letters),
        ]  # fmt: skip


def say(subscriptions: list[int]) -> None:
    """Tell that it is ready, and the subscriptions that it has made."""
    print(json.dumps({"ready": subscriptions}), flush=True)


def main() -> None:
    django.setup()
    ClientThreads(json.loads(sys.argv[1])).run()


if __name__ == "__main__":
    main()
