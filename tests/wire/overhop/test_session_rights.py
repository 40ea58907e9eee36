"""Overhop against a running broker: the system's queues, and what an API key allows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.wire.broker import Broker, Database
from tests.wire.overhop.peer import Peer
from wire.overhop.codec import Code, Type

SID = "8c7ac1b6-2a3c-4d5e-8f90-a1b2c3d4e5f6"


# The system's queues.


@pytest.mark.parametrize("t", [Type.ENQUEUE, Type.QSTATS, Type.PAUSE, Type.RESUME, Type.RMQUEUE])
@pytest.mark.parametrize("name", ["_system", "_none"])
def test_the_systems_queues_are_not_to_be_touched(worker: Peer, t: Type, name: str) -> None:
    assert worker.refused(t, q=name) is Code.SYSTEM_QUEUE_FORBIDDEN


@pytest.mark.parametrize("t", [Type.JOB, Type.RMJOB])
def test_jobs_of_the_systems_queues_are_not_to_be_touched(worker: Peer, t: Type) -> None:
    assert worker.refused(t, jid=f"_system:{SID}") is Code.SYSTEM_QUEUE_FORBIDDEN


def test_the_systems_queue_may_be_seen_subscribed_to_and_listed(worker: Peer) -> None:
    assert worker.ask(Type.GQUEUE, q="_system")["name"] == "_system"
    answer = worker.ask(Type.LSJOB, q="_system", status="new")
    assert answer == {"q": "_system", "status": "new", "page": 1, "page_size": 15, "jobs": []}
    sid = worker.subscribe("_system", 5)
    assert worker.refused(Type.SUBSCRIBE, q="_system") is Code.DUPLICATE_SUBSCRIPTION
    assert worker.ask(Type.UNSUBSCRIBE, sid=sid) == {}


# Permissions.


@pytest.fixture
def guarded(store: Database) -> Iterator[Broker]:
    store.execute(
        "insert into queues_apikey (name, digest, hint, protocols, publish, consume, manage)"
        " values ('overhop clients', 'x', '', '{overhop}', '{give-*,both}', '{do-*,both}', '{own-*}')"
    )
    with Broker(store, BROKER_OVERHOP_API_KEY="overhop clients") as running:
        yield running


def test_the_named_key_says_what_overhop_clients_may_do(guarded: Broker, worker: Peer, store: Database) -> None:
    jids = {}
    for name in ("give-1", "do-1", "both", "own-1"):
        worker.ask(Type.ADDQUEUE, name=name)
        jids[name] = worker.enqueue(name, 1)
    with Peer(guarded.overhop) as client:
        may: dict[Type, set[str]] = {}
        asks: list[tuple[Type, Any]] = [
            (Type.ENQUEUE, lambda q: {"q": q}),
            (Type.SUBSCRIBE, lambda q: {"q": q}),
            (Type.JOB, lambda q: {"jid": jids[q]}),
            (Type.LSJOB, lambda q: {"q": q, "status": "new"}),
            (Type.PAUSE, lambda q: {"q": q}),
            (Type.RESUME, lambda q: {"q": q}),
            (Type.RMJOB, lambda q: {"jid": jids[q]}),
        ]
        for t, request in asks:
            for name in jids:
                message = client.reply(client.request(t, request(name)))
                if message.t == Type.ERR:
                    assert message.p["code"] == Code.FORBIDDEN
                else:
                    may.setdefault(t, set()).add(name)
        assert may == {
            Type.ENQUEUE: {"give-1", "both"},
            Type.SUBSCRIBE: {"do-1", "both"},
            Type.JOB: {"do-1", "both"},
            Type.LSJOB: {"do-1", "both"},
            Type.PAUSE: {"own-1"},
            Type.RESUME: {"own-1"},
            Type.RMJOB: {"own-1"},
        }
        assert client.refused(Type.ADDQUEUE, name="mine") is Code.FORBIDDEN
        client.ask(Type.ADDQUEUE, name="own-2")
        assert client.refused(Type.RMQUEUE, q="give-1") is Code.FORBIDDEN
        client.ask(Type.RMQUEUE, q="own-2")

        store.execute("update queues_apikey set publish = '{own-*}' where name = 'overhop clients'")
        client.ended()
    with Peer(guarded.overhop) as client:
        assert client.refused(Type.ENQUEUE, q="both") is Code.FORBIDDEN
        assert client.enqueue("own-1").startswith("own-1:")
        store.execute("update queues_apikey set revoked_at = now() where name = 'overhop clients'")
        client.ended()
    with Peer(guarded.overhop) as client:
        assert client.refused(Type.ENQUEUE, q="own-1") is Code.FORBIDDEN
        assert client.refused(Type.SUBSCRIBE, q="do-1") is Code.FORBIDDEN
