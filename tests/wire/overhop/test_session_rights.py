"""Overhop against a running broker: the system's queues, and what an API key allows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.wire.broker import Broker, Database
from tests.wire.overhop.peer import Peer
from wire.overhop.codec.names import Code, Type

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


def make(store: Database, name: str) -> None:
    store.execute(
        "insert into queues_queue (name, uuid, max_attempts, retry_backoff) values (%s, gen_random_uuid(), 5, '1 s')"
        " on conflict do nothing",
        name,
    )


HIDDEN = ["_peer/bob", "_subscription/7/prices", "_none"]
CELERYS = ["celery", "fivewire", "w1@host.celery.pidbox"]


@pytest.mark.parametrize("name", HIDDEN)
def test_a_peers_letters_and_a_subscribers_messages_are_out_of_reach(worker: Peer, store: Database, name: str) -> None:
    make(store, name)
    assert worker.refused(Type.SUBSCRIBE, q=name, credits=10) is Code.SYSTEM_QUEUE_FORBIDDEN
    assert worker.refused(Type.LSJOB, q=name, status="new") is Code.SYSTEM_QUEUE_FORBIDDEN
    assert worker.refused(Type.GQUEUE, q=name) is Code.SYSTEM_QUEUE_FORBIDDEN
    assert name not in [queue["name"] for queue in worker.ask(Type.LQUEUES)["queues"]]


@pytest.mark.parametrize("name", CELERYS)
def test_a_client_without_a_key_does_not_reach_celerys_queues(worker: Peer, store: Database, name: str) -> None:
    make(store, name)
    for t in (Type.SUBSCRIBE, Type.ENQUEUE, Type.GQUEUE, Type.QSTATS, Type.PAUSE, Type.RMQUEUE):
        assert worker.refused(t, q=name) is Code.FORBIDDEN
    unnamable = "@" in name  # the protocol's own grammar
    assert worker.refused(Type.ADDQUEUE, name=name) is (Code.INVALID_QUEUE_NAME if unnamable else Code.FORBIDDEN)
    shown = [queue["name"] for queue in worker.ask(Type.LQUEUES)["queues"]]
    assert name not in shown
    assert "_system" in shown


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
    for name in ("give-1", "do-1", "both", "own-1", "hidden"):
        worker.ask(Type.ADDQUEUE, name=name)
        jids[name] = worker.enqueue(name, 1)
    with Peer(guarded.overhop) as client:
        may: dict[Type, set[str]] = {}
        asks: list[tuple[Type, Any]] = [
            (Type.ENQUEUE, lambda q: {"q": q}),
            (Type.SUBSCRIBE, lambda q: {"q": q}),
            (Type.JOB, lambda q: {"jid": jids[q]}),
            (Type.LSJOB, lambda q: {"q": q, "status": "new"}),
            (Type.GQUEUE, lambda q: {"q": q}),
            (Type.QSTATS, lambda q: {"q": q}),
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
            Type.GQUEUE: {"give-1", "do-1", "both", "own-1"},
            Type.QSTATS: {"give-1", "do-1", "both", "own-1"},
            Type.PAUSE: {"own-1"},
            Type.RESUME: {"own-1"},
            Type.RMJOB: {"own-1"},
        }
        seen = [queue["name"] for queue in client.ask(Type.LQUEUES)["queues"]]
        assert [name for name in seen if name in jids] == ["both", "do-1", "give-1", "own-1"]
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
