"""`manage.py bench` as a process, and its figures."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from django.conf import settings

from brokersite.rigs.bench.report import COLUMNS
from tests.process import Process
from tests.waiting import PATIENCE
from tests.wire.broker import Database


class Bench(Process):
    """`manage.py bench` as a process, in a process group of its own as from a shell."""

    patience = 8 * PATIENCE  # Spark starts slowly on a busy machine

    def __init__(self, store: Database, *arguments: str) -> None:
        environment = {"DATABASE_URL": store.url, "SECRET_KEY": settings.SECRET_KEY}
        super().__init__(sys.executable, "manage.py", "bench", *arguments, environment=environment, group=True)


def bench(store: Database, *arguments: str, status: int = 0) -> str:
    """Run it to its end; what it printed, or what it said when it is to fail."""
    ended, lines, err = Bench(store, *arguments).finish()
    out = "".join(f"{line}\n" for line in lines)
    assert ended == status, out + err
    return err if status else out


def assert_whole(results: dict[str, Any], system: str, measures: Sequence[str], absent: Sequence[str] = ()) -> None:
    """A system has every figure of these measurements, and none of it is nothing. Only the processor time of another
    process may be: the kernel counts it in steps of 10 ms, and a short measurement can fall between two of them."""
    for measure in measures:
        for name in COLUMNS[measure]:
            if name not in absent:
                least = 0.0 if name in ("broker_cpu_us", "postgresql_cpu_us") else 1e-9
                assert results[measure][system][name]["median"] >= least, (measure, name)


def at(address: Sequence[Any]) -> str:
    return f"{address[0]}:{address[1]}"


def assert_nothing_left(store: Database) -> None:
    """No queue, subscription, peer or key of the benchmark is in the store, and no message at all."""
    assert store.rows("select name from queues_queue where name like '%%bench-%%'") == []
    assert store.rows("select name from queues_apikey where name like 'bench-%%'") == []
    assert store.rows("select id from queues_subscription") == []
    assert store.rows("select name from queues_mailbox") == []
    assert store.rows("select id from queues_openmessage") == []
