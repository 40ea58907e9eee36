"""A client that waits on a quiet broker is served as soon as there is something, whatever was under way when it came.

A look every few seconds finds what was overlooked; here it is put off, so that nothing is left to it.
"""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from queues.engine.access import key_digest
from queues.engine.api import DetailedMessage, StoreUnavailable, options_from_settings
from queues.engine.consume.claim_path import State
from queues.engine.consume.low_watermark import FIRST, LOWEST
from queues.engine.message import Failure
from queues.operations.keys import create_key
from tests.queues.engine.conftest import Consumer, MakeEngine, Producer, Store, Waiting, Worker
from tests.queues.engine.mailbox.test_service import Peer
from tests.tables import lock_waits
from tests.waiting import PATIENCE


@pytest.fixture(autouse=True)
def no_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queues.engine.cluster.tidying.UNSEEN", 3600.0)
    monkeypatch.setattr("queues.engine.mailbox.mailbox.FIRST_LOOKS", (3600.0,))
    monkeypatch.setattr("queues.engine.mailbox.mailbox.LOOK", 3600.0)


@pytest.fixture
def key(transactional_db: None) -> int:
    return int(create_key("peers")[0].pk)


@pytest.fixture
def client_key(transactional_db: None) -> tuple[int, str]:
    """An API key's id, and the key."""
    row, text = create_key("clients")
    return int(row.pk), text


INTEREST = "select xmin::text from queues_interest where queue_id = %s"


def hold_key(connection: psycopg.Connection[Any], queue: int) -> None:
    """A transaction that stores a message with the key "k" in this queue waits for this transaction."""
    connection.execute(
        b"insert into queues_message (id, queue_id, state, key, payload)"
        b" values (nextval('queues_message_id'), %s, 0, 'k', '')",
        (queue,),
    )


async def test_a_place_in_memory_that_a_burial_frees_is_filled(make_engine: MakeEngine, store: Store) -> None:
    queue = store.queue("q", max_attempts=1)
    engine = await make_engine(prefetch=1)
    buffer = await engine.queue("q")
    await Producer(engine).publish("q", b"failing", b"next", b"last")
    first = await Consumer(buffer).next()
    assert first is not None
    second = asyncio.create_task(Consumer(buffer).next())
    await store.until(lambda: buffer.interest.demand and not buffer.backlog.claiming, "it waits")
    buffer.deliveries.give_back(first[0], error="no")
    delivery = await second
    assert delivery is not None
    assert delivery[1] == b"next"
    third = asyncio.create_task(Consumer(buffer).bodies(1))
    await store.until(lambda: buffer.interest.demand and not buffer.backlog.claiming, "it waits")
    buffer.deliveries.bury(delivery[0], "it cannot be sent")
    assert await third == [b"last"]
    await store.until(lambda: store.counts(queue)[3] == 2, "both are dead letters")


async def test_a_high_priority_is_pushed_although_memory_is_full_and_the_writer_busy(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queues.engine.consume.interest.COLD_SHARED", 3600.0)
    monkeypatch.setattr("queues.engine.consume.held_messages.UNKNOWN_BYTES", 1)
    queue, another = store.queue("q"), store.queue("other")
    engine = await make_engine(prefetch=5)
    buffer = await engine.queue("q")
    producer, worker = Producer(engine), Worker(buffer)
    await producer.publish("q", *(b"%d" % n for n in range(6)))
    worker.grant(1)
    assert await worker.bodies(1) == [b"0"]
    await producer.publish_detailed("q", DetailedMessage(b"urgent", priority=5))
    with psycopg.connect(store.conninfo) as other:
        other.execute(b"select from queues_message where queue_id = %s and state = 0 for update", (queue,))
        worker.grant(1)
        await store.until(lambda: buffer.backlog.claiming, "the claim")
        await producer.publish("q", b"6")
        other.rollback()
    assert await worker.bodies(1) == [b"urgent"]
    assert buffer.backlog.state is State.NEARLY_DONE
    assert buffer.prefetch.room <= 0
    await producer.publish_detailed("q", DetailedMessage(b"urgent too", priority=5))
    with psycopg.connect(store.conninfo) as other:
        hold_key(other, another)
        writing = asyncio.create_task(producer.publish_detailed("other", DetailedMessage(b"x", key="k")))
        await store.until(lambda: not engine.writer.idle, "the writer is busy")
        worker.grant(1)
        nearly_done = engine.fetcher.nearly_done
        await store.until(lambda: not buffer.prefetch.overtaken or buffer in nearly_done, "the writer has it")
        await writing  # it is refused after a second try, before which the writer claims
    assert await worker.bodies(1) == [b"urgent too"]


async def test_a_place_under_a_concurrency_limit_that_another_node_frees_is_taken_at_once(
    make_engine: MakeEngine, store: Store
) -> None:
    store.queue("q", concurrency_limit=1)
    first, second = await make_engine(), await make_engine()
    one, other = Worker(await first.queue("q")), Worker(await second.queue("q"))
    await Producer(first).publish("q", b"1", b"2")
    one.grant(1)
    [job] = await one.take(1)
    other.grant(1)
    await store.until(lambda: not one.buffer.interest.known and other.buffer.interest.known, "the first wants no more")
    await store.until(lambda: not other.buffer.backlog.unclaimed, "the second has looked in vain")
    assert one.buffer.deliveries.complete(job.tag, None)
    assert await other.bodies(1) == [b"2"]


async def test_a_message_of_a_higher_priority_that_came_while_no_node_served_the_queue_is_the_first(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.queue("q")
    here, elsewhere = await make_engine(), Producer(await make_engine())
    buffer = await here.queue("q")
    while buffer.backlog.watermark.value <= LOWEST:  # it rises with a claim after that of a message
        await elsewhere.publish("q", b"0")
        assert await Consumer(buffer).bodies(1) == [b"0"]
    monkeypatch.setattr("queues.engine.consume.interest.COLD", 0.0)
    buffer.interest.tidy_soon()
    await store.until(lambda: not store.rows(INTEREST, buffer.id), "no consumer")
    monkeypatch.undo()
    await elsewhere.publish("q", b"1")
    await elsewhere.publish_detailed("q", DetailedMessage(b"urgent", priority=5))
    assert await Consumer(buffer).bodies(2) == [b"urgent", b"1"]


async def test_a_dead_letter_for_a_departed_reader_goes_to_others(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, claimed = store.queue("q"), asyncio.get_running_loop().create_future()
    await store.change(
        "insert into queues_message (id, queue_id, state, payload, dead_at)"
        " values (nextval('queues_message_id'), %s, 3, 'x', now()) returning id", queue,
    )  # fmt: skip
    engine, other = await make_engine(), await make_engine()
    dead = await engine.dead_letters("q")
    gone, claim = Waiting(), engine.fetcher._claim

    async def claim_too_late(*arguments: Any) -> Any:
        found = await claim(*arguments)
        dead.cancel(gone)
        claimed.set_result(found[1])
        return found

    monkeypatch.setattr(engine.fetcher, "_claim", claim_too_late)
    dead.wait(gone)
    async with asyncio.timeout(PATIENCE):
        assert len(await claimed) == 1  # no consumer here wants it
    assert await Consumer(await other.dead_letters("q")).bodies(1) == [b"x"]


async def test_a_letter_that_comes_while_another_is_fetched_is_delivered_at_once(
    make_engine: MakeEngine, store: Store, key: int
) -> None:
    store.queue("q")
    engine = await make_engine(mailboxes=True)
    room = engine.mailboxes
    assert room is not None
    peer = await Peer(engine, "a", key).here()
    await store.change("insert into queues_route (source, target) values ('queue:q', 'peer:a') returning id")
    await store.until(lambda: not peer.mailbox.backlog.unclaimed and room.idle, "it has looked")
    waiting = lock_waits("fivewire mailboxes")
    with psycopg.connect(store.conninfo) as other:
        other.execute(b"select queues_audit_head('peerbus')")  # as another node does that records something
        room.more_in_store(peer.mailbox.queue, FIRST)
        await store.until(lambda: store.rows(waiting), "what it fetches is to be recorded")
        await Producer(engine).publish("q", b"hello")
        other.rollback()
    await peer.until(lambda: peer.letters)


async def test_a_consumer_that_begins_to_wait_while_its_node_withdraws_interest_gets_messages_of_other_nodes(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queues.engine.consume.interest.COLD", 3600.0)
    for pause in ("UNSEEN", "TOUCH"):  # these statements, too, would wait on that connection, and the tidying with them
        monkeypatch.setattr(f"queues.engine.cluster.tidying.{pause}", 3600.0)
    queue = store.queue("q")
    engine = await make_engine()
    buffer = await engine.queue("q")
    await Producer(engine).publish("q", b"0")
    assert await Consumer(buffer).bodies(1) == [b"0"]
    await store.until(lambda: store.rows("select from queues_queuecount where queue_id = %s", queue), "a count")
    await store.until(lambda: not buffer.backlog.watermark.lags, "no look below the watermark is left to do")
    [said] = store.rows(INTEREST, queue)
    upkeep = engine.connections["upkeep"].info.backend_pid
    stuck = "select from pg_stat_activity where pid = %s and wait_event_type = 'Lock'"
    with psycopg.connect(store.conninfo) as other:  # as a batch for a queue with a maximum length does
        other.execute(b"select from queues_queuecount for update")
        store.rows("insert into queues_queuetally (queue_id, ready) values (%s, 0) returning id", queue)
        await store.until(lambda: store.rows(stuck, upkeep), "counts wait, and what follows on that connection")
        monkeypatch.setattr("queues.engine.consume.interest.COLD", 0.0)
        buffer.interest.tidy_soon()
        await store.until(lambda: not buffer.interest.known, "no consumer")
        waiting = asyncio.create_task(Consumer(buffer).bodies(1))
        await store.until(lambda: buffer.interest.known and not buffer.backlog.unclaimed, "a consumer")
        other.rollback()
    await store.until(lambda: store.rows(INTEREST, queue) != [said], "its loss of interest is written")
    await store.until(lambda: store.rows(INTEREST, queue), "its interest is written")
    await Producer(await make_engine()).publish("q", b"1")
    assert await waiting == [b"1"]


async def test_a_late_acknowledgement_does_not_wait_until_nothing_is_returned_any_more(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await make_engine()
    subscription = await engine.subscriptions.create(b"t", 1, None)
    settlements, written = engine.settlements, engine.settlements._parts._return

    async def return_and_hear_of_more(*arguments: Any) -> None:
        settlements.give_back(Failure(1, 1))
        await written(*arguments)

    monkeypatch.setattr(settlements._parts, "_return", return_and_hear_of_more)
    settlements.give_back(Failure(1, 1))
    for _ in range(3):
        async with asyncio.timeout(PATIENCE):
            assert await engine.subscriptions.ack_late(subscription, [7], None) == {7}
    monkeypatch.undo()


async def test_a_chain_that_is_broken_holds_up_only_late_acknowledgements_of_its_own_queue(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queues.engine.consume.subscriptions.RETURNING", 0.1)
    engine = await make_engine()
    plain, audited = [await engine.subscriptions.create(topic, 1, None) for topic in (b"plain", b"audited")]
    await store.change("update queues_queue set audited = true where id = %s returning id", audited.buffer.id)
    await store.until(lambda: audited.buffer.audited is not None, "it is audited")
    await Producer(engine).publish("topic:audited", b"1")
    delivery = await Consumer(audited.buffer).next()
    assert delivery is not None
    name = audited.buffer.policy.name
    await store.until(
        lambda: store.rows("select from queues_auditchain c join queues_audithead on chain_id = c.id"
                           " where c.name = %s", f"queue:{name}"), "its chain",
    )  # fmt: skip
    await store.until(lambda: engine.settlements.idle, "the delivery is recorded")
    chain = "(select id from queues_auditchain where name = %s)"
    [head] = await store.change(f"delete from queues_audithead where chain_id = {chain} returning *", f"queue:{name}")
    audited.buffer.deliveries.give_back(delivery[0], error="no")
    assert await engine.subscriptions.ack_late(plain, [7], None) == {7}
    with pytest.raises(StoreUnavailable):
        await engine.subscriptions.ack_late(audited, [7], None)
    await store.change("insert into queues_audithead values (%s, %s, %s, %s) returning 1 as one", *head.values())
    await store.until(lambda: engine.settlements.idle, "it is recorded")
    assert await engine.subscriptions.ack_late(audited, [7], None) == {7}


async def test_a_key_that_is_revoked_while_it_is_looked_up_is_not_good(
    make_engine: MakeEngine, store: Store, client_key: tuple[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await make_engine()
    key, text = client_key
    request = engine.connections.look_up

    async def revoked_meanwhile(name: str, /, **parameters: Any) -> Any:
        found = await request(name, **parameters)
        monkeypatch.setattr(engine.connections, "look_up", request)
        store.rows("update queues_apikey set revoked_at = now() where id = %s returning id", key)
        engine.grants.forget(key)
        return found

    monkeypatch.setattr(engine.connections, "look_up", revoked_meanwhile)
    assert await engine.authenticate(text, "blipmq") is None


async def test_nodes_with_different_secrets_know_each_others_keys_when_they_share_a_pepper(
    make_engine: MakeEngine, client_key: tuple[int, str]
) -> None:
    key, text = client_key
    [made_with] = options_from_settings("test").peppers
    stranger = await make_engine(peppers=("the secret of another data directory",))
    assert await stranger.authenticate(text, "blipmq") is None
    relative = await make_engine(peppers=("a newer pepper", made_with))
    for _ in range(2):
        grant = await relative.authenticate(text, "blipmq")
        assert grant is not None
        assert grant.id == key


async def test_both_values_of_a_rotated_key_are_good_for_a_while_and_its_last_log_in_is_noted(
    make_engine: MakeEngine, store: Store, client_key: tuple[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queues.engine.grants.GRANTS", 0.1)
    engine = await make_engine()
    key, text = client_key
    assert await engine.authenticate(text, "blipmq", "192.0.2.7") is not None
    uses = "select protocol, address from queues_apikeyuse where key_id = %s and at > now() - interval '1 minute'"
    await store.until(lambda: store.rows(uses, key) == [{"protocol": "blipmq", "address": "192.0.2.7"}], "it")
    digest = key_digest("the new value", engine.options.peppers[0])
    store.rows(
        "update queues_apikey set digest = %s, old_digest = digest, old_until = now() + interval '1 hour' where id = %s"
        " returning 1", digest, key,
    )  # fmt: skip
    for value in (text, "the new value"):
        grant = await engine.authenticate(value, "blipmq")
        assert grant is not None
        assert grant.id == key
    store.rows("update queues_apikey set old_until = now() where id = %s returning 1", key)

    async def refused() -> bool:
        return await engine.authenticate(text, "blipmq") is None

    async with asyncio.timeout(PATIENCE):
        while not await refused():
            await asyncio.sleep(0.01)
    assert await engine.authenticate("the new value", "blipmq") is not None
