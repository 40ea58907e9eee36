"""Users' scenarios, one for each part of the engine: each makes the engine run its statements, whatever fails in
them, and sees that nothing that was confirmed is lost and that only the unit concerned suffers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest.mock import patch

import psycopg

from queues.engine.api import Ask, Destination, DetailedMessage, Engine, Forward, PrefetchedQueue, StoreUnavailable
from queues.engine.clock import now
from queues.engine.cluster.notifications.formats import RemoteAck
from queues.models import State
from tests.queues.audit.spans import messages_of
from tests.queues.engine.conftest import Consumer, MakeEngine, Producer, Store, Worker
from tests.queues.engine.faults import Faults, unwritable
from tests.queues.engine.mailbox.test_service import Peer
from tests.waiting import PATIENCE, until

T = TypeVar("T")
_numbers = itertools.count()
DEAD = (State.DEAD, State.DEAD_LEASED)



class World:
    """An engine under fault, and a neighbour that must not notice."""

    def __init__(
        self, make_engine: MakeEngine, engine: Engine, store: Store, faults: Faults, keys: list[int], text: str
    ) -> None:
        """`keys`: ids of two API keys; `text`: the first one's."""
        self.make_engine, self.engine, self.store, self.faults = make_engine, engine, store, faults
        self.keys, self.text = keys, text
        self.producer, self.neighbour = Producer(engine), Producer(engine)
        #: Addresses that a publish to was refused, and questions that were answered with an error.
        self.refused: set[str] = set()
        self._neighbours: Consumer | None = None
        self._other: Engine | None = None

    async def another(self) -> Engine:
        """A second node, made once."""
        if self._other is None:
            self._other = await self.make_engine()
        return self._other

    @property
    def engines(self) -> list[Engine]:
        return [self.engine] if self._other is None else [self.engine, self._other]

    async def queue(self, **policy: Any) -> tuple[str, int]:
        """A queue that no engine knows yet: its name and id."""
        name = f"q{next(_numbers)}"
        return name, await asyncio.to_thread(self.store.queue, name, **policy)

    async def put(self, queue: int, *bodies: bytes) -> None:
        """Store messages that no node is told of."""
        sql = (
            "with counted as (insert into queues_queuetally (queue_id, ready, published) values (%s, 1, 1))"
            " insert into queues_message (id, queue_id, state, payload)"
            " values (nextval('queues_message_id'), %s, 0, %s) returning 1"
        )
        for body in bodies:
            await self.store.change(sql, queue, queue, body)

    async def buffer(self, name: str) -> PrefetchedQueue:
        return await self.asked(lambda: self.engine.queue(name))

    async def asked(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask as a session does that tries again when it is told that this cannot be answered now."""
        for _ in range(100):
            try:
                return await ask()
            except (StoreUnavailable, psycopg.Error):
                self.refused.add("request")
                await asyncio.sleep(0.01)
        raise AssertionError("never answered")

    async def publish(
        self, address: str, *bodies: bytes, detailed: bool = False, key: int | None = None, alone: bool = False
    ) -> list[bytes]:
        """Publish, in one batch with the neighbour or alone; returns what was confirmed."""
        self.producer.failed.clear()
        source = self.engine.publisher(Destination.parse(address), key)
        for n, body in enumerate(bodies):
            if detailed:
                source.publish_detailed(DetailedMessage(body, headers={"n": n}), self.producer, n)
            else:
                source.publish(body, self.producer, n)
        if alone:
            await self.producer.wait(self.engine.open_batch)
        else:
            await self.neighbour.publish("neighbour", b"beside " + bodies[0])
        failed = {token for token, _ in self.producer.failed}
        if failed:
            self.refused.add(address)
        return [body for n, body in enumerate(bodies) if n not in failed]

    async def neighbour_goes_on(self) -> None:
        """The neighbour's messages were all stored, come in order, and are acknowledged."""
        if self._neighbours is None:
            self._neighbours = Consumer(await self.engine.queue("neighbour"))
        await self.neighbour.publish("neighbour", b"last")
        while await self._neighbours.bodies(1) != [b"last"]:
            pass
        assert self.neighbour.failed == []

    async def consume(self, name: str, count: int) -> list[bytes]:
        return await Consumer(await self.buffer(name)).bodies(count)

    async def until_settled(self, queue: int, but: bytes = b"") -> None:
        """Until nothing of a queue waits or is out, this one message perhaps excepted."""
        await self.store.until(
            lambda: self.engine.settlements.idle and not set(self.left(queue)) - {but}, "the settlement"
        )

    async def until_in_states(self, queue: int, state: int) -> None:
        """Until the two messages of a queue are in this state, or dead letters."""
        await self.store.until(
            lambda: {row["state"] for row in self.store.messages(queue)} <= {state, State.DEAD}, "the return"
        )
        assert len(self.store.messages(queue)) == 2

    async def until_buried(self, queue: int, graves: int, count: int) -> None:
        """Until so many messages of a queue are dead letters there, or messages of another queue."""
        await self.store.until(
            lambda: not self.left(queue) and len(self.dead(queue)) + len(self.left(graves)) == count, "the dead letters"
        )

    def left(self, queue: int) -> list[bytes]:
        """Messages of a queue that are no dead letters."""
        return [bytes(row["payload"]) for row in self.store.messages(queue) if row["state"] not in DEAD]

    def dead(self, queue: int) -> list[bytes]:
        return [bytes(row["payload"]) for row in self.store.messages(queue) if row["state"] in DEAD]

    def done(self, queue: int) -> int:
        """Messages of a queue that the archive has."""
        return len(self.store.archived(queue))


# Publishing.


async def publishing(world: World) -> None:
    """Publish to queues of each kind; what is confirmed is consumed, in order."""
    world.engine.writer.forget_history()  # it knows the names of API keys by now
    (first, _), (second, _) = await world.queue(), await world.queue()
    topic, route = f"topic:{first}", "insert into queues_route (source, target) values (%s, %s) returning 1"
    for target in (first, second):
        await world.store.change(route, topic, f"queue:{target}")
    both = await world.publish(topic, b"1", b"2")
    assert await world.consume(first, len(both)) == both
    assert await world.consume(second, len(both)) == both
    alone = await world.publish(first, b"1", b"2", alone=True)
    assert await world.consume(first, len(alone)) == alone
    policies: list[dict[str, Any]] = [{}, {"max_length": 10}, {"audited": True}]
    for policy in policies:
        name, _ = await world.queue(**policy)
        confirmed = await world.publish(name, b"1", b"2", key=world.keys[0])
        confirmed += await world.publish(name, b"3", b"4", detailed=True)
        assert await world.consume(name, len(confirmed)) == confirmed


async def overflowing(world: World) -> None:
    """Publish more than a queue keeps."""
    name, _ = await world.queue(max_length=2, overflow="drop-oldest")
    confirmed = [body for n in range(4) for body in await world.publish(name, b"%d" % n)]
    assert confirmed == [b"0", b"1", b"2", b"3"], "room is made for them, at once or by the next"
    await world.publish(name, b"4")
    assert await world.consume(name, 2) == [b"3", b"4"]


# Consuming and settling.


async def consuming(world: World) -> None:
    """Consume from queues of each kind, and from the dead letters of one."""
    policies: list[dict[str, Any]] = [{}, {"concurrency_limit": 1}]
    for policy in policies:
        name, queue = await world.queue(**policy)
        await world.put(queue, b"0", b"1", b"2")
        consumer = Consumer(await world.buffer(name))
        got: list[bytes] = []
        while len(got) + len(world.dead(queue)) < 3:  # what was taken alone as the claim failed is a dead letter
            with contextlib.suppress(TimeoutError):
                delivery = await consumer.next(0.1)
                assert delivery is not None
                consumer.buffer.deliveries.ack(delivery[0])
                got.append(delivery[1])
        assert sorted([*got, *world.dead(queue)]) == [b"0", b"1", b"2"]
        assert got == sorted(got)
        assert len(got) >= (2 if policy else 3)
    name, queue = await world.queue()
    await world.put(queue, b"dead")
    sql = "update queues_message set state = 3, dead_at = now() where queue_id = %s returning 1"
    await world.store.change(sql, queue)
    reader = Consumer(await world.asked(lambda: world.engine.dead_letters(name)))
    assert await reader.bodies(1) == [b"dead"]
    await world.until_settled(queue)


async def taking_turns(world: World) -> None:
    """Two consumers of a queue with a single active one: the second has its turn when the first has ended."""
    name, queue = await world.queue(single_active_consumer=True)
    buffer = await world.buffer(name)
    first, second = Worker(buffer), Worker(buffer)
    first.grant(2)
    await world.store.until(lambda: buffer.line and buffer.line.active is first, "the first one's turn")
    second.grant(2)
    bodies = await world.publish(f"queue:{name}", b"1", b"2")
    assert await first.bodies(len(bodies)) == bodies
    buffer.dispatcher().withdraw(first)
    buffer.leave(first)
    taken = await second.take(len(bodies))
    assert [push.payload for push in taken] == bodies
    buffer.deliveries.complete_many([push.tag for push in taken])
    await world.until_settled(queue)


async def narrowing(world: World) -> None:
    """Consume beside a message that cannot be claimed."""
    name, queue = await world.queue()
    await world.put(queue, b"1", b"2", b"poison", b"3")
    async with unwritable(world.store, "update", when="new.state = 1"):
        assert await world.consume(name, 3) == [b"1", b"2", b"3"]
        await world.until_settled(queue, but=b"poison")


async def narrowing_letters(world: World) -> None:
    """A peer connects for which a letter waits that cannot be claimed."""
    n, key = next(_numbers), world.keys[0]
    sender, reader = await _here(world, f"sender{n}", key), await _here(world, f"reader{n}", key)
    reader.leave()
    sender = await _sent(world, sender, reader.name, f"{n}a", "poison", f"{n}b")
    await world.store.change("delete from queues_letterseen returning 1")
    async with unwritable(world.store, "update", b"body of poison", when="new.state = 1"):
        await _letters(world, await _here(world, reader.name, key), [f"{n}a", f"{n}b"])
    sender.leave()


async def _taken(world: World, count: int = 2, **policy: Any) -> tuple[PrefetchedQueue, int, list[int]]:
    """A queue of which so many messages were delivered: its buffer, id, and their tags."""
    name, queue = await world.queue(**policy)
    buffer = await world.buffer(name)
    await world.publish(name, *[b"%d" % n for n in range(count)])
    consumer = Consumer(buffer)
    tags = [delivery[0] for delivery in [await consumer.next() for _ in range(count)] if delivery is not None]
    return buffer, queue, tags


async def settling(world: World, **policy: Any) -> None:
    """Acknowledge two messages at once, and one alone. What was acknowledged together is taken apart; one alone that
    cannot be removed is a dead letter."""
    for count in (1, 2):
        buffer, queue, tags = await _taken(world, count, **policy or {"retention": "full"})
        assert buffer.deliveries.ack_many(tags) == []
        await world.until_settled(queue)
        dead = len(world.dead(queue))
        assert world.done(queue) == (0 if "none" in policy.values() else count - dead)
        assert dead <= (count == 1)


async def settling_without_archive(world: World) -> None:
    """As `settling`, in a queue that keeps nothing."""
    await settling(world, retention="none")


async def settling_audited(world: World) -> None:
    """As `settling`, in an audited queue."""
    await settling(world, audited=True)


async def finishing_jobs(world: World) -> None:
    """Finish jobs with their results."""
    name, queue = await world.queue()
    buffer = await world.buffer(name)
    worker = Worker(buffer)
    worker.grant(2)
    await world.publish(name, b"1", b"2")
    for push in await worker.take(2):
        assert buffer.deliveries.complete(push.tag, b"result")
    await world.until_settled(queue)
    assert [row["job"] for row in world.store.archived(queue)] == [True] * (2 - len(world.dead(queue)))


async def packing(world: World) -> None:
    """Publish messages together, as a segment; acknowledge two of them and return one."""
    name, queue = await world.queue()
    world.engine.writer.segment_messages = 2
    buffer = await world.buffer(name)
    consumer = Consumer(buffer)
    first = asyncio.ensure_future(consumer.next())
    await until(lambda: not buffer.prefetch.may_refill and not buffer.backlog.claiming, "a claim that finds nothing")
    sent = await world.publish(name, b"1", b"2", b"3")
    came = [await first, *[await consumer.next() for _ in sent[1:]]]
    taken = [delivery for delivery in came if delivery is not None]
    assert [delivery[1] for delivery in taken] == sent
    assert buffer.deliveries.ack_many([delivery[0] for delivery in taken[:2]]) == []
    buffer.deliveries.give_back(taken[2][0], delay=3600.0, error="no")
    await world.store.until(
        lambda: world.engine.settlements.idle and not {row["state"] for row in world.store.messages(queue)} & {0, 1},
        "the settlement",
    )
    assert world.done(queue) + len(world.store.messages(queue)) == 3
    world.engine.writer.segment_messages = 0


async def rotating(world: World) -> None:
    """Publish messages one by one; one stays with its consumer for longer than a turn."""
    name, queue = await world.queue()
    writer, node = world.engine.writer, world.engine.maintenance.node
    writer.segment_messages, node.turn = 32, 600.0
    buffer = await world.buffer(name)
    consumer, tags = Consumer(buffer), list[int]()
    coming = asyncio.ensure_future(consumer.next())
    for body in (b"1", b"2", b"3"):  # one of them may be refused
        await until(lambda: not buffer.prefetch.may_refill and not buffer.backlog.claiming, "an empty claim")
        if await world.publish(name, body, alone=True):
            delivery = await coming
            assert delivery is not None
            tags.append(delivery[0])
            coming = asyncio.ensure_future(consumer.next())
    coming.cancel()
    assert buffer.deliveries.ack_many(tags[:1]) == []
    await world.store.until(lambda: world.engine.settlements.idle, "the settlement")
    node.turn = 0.2
    left = "select from queues_segment where slot > 0 and queue_id = %s"
    await world.store.until(lambda: not world.store.rows(left, queue), "the truncation")
    assert buffer.deliveries.ack_many(tags[1:]) == []
    await world.store.until(lambda: world.engine.settlements.idle and not world.left(queue), "the settlement")
    assert world.done(queue) + len(world.dead(queue)) == len(tags)
    writer.segment_messages, node.turn = 0, 600.0


async def late(world: World) -> None:
    """Acknowledge what this node no longer has."""
    for audited in (False, True):
        name, queue = await world.queue(audited=audited)
        buffer = await world.buffer(name)
        await world.put(queue, b"1", b"2")
        for row in world.store.messages(queue):
            buffer.deliveries.settle_late(row["id"], now(), None)
        await world.until_settled(queue)
        assert world.done(queue) == 2


async def returning(world: World) -> None:
    """Return, give up and hand back messages, two at once, of queues with and without a record."""
    for audited in (False, True):
        for delay in (0.0, 3600.0):
            buffer, queue, tags = await _taken(world, audited=audited)
            for tag in tags:
                buffer.deliveries.give_back(tag, delay=delay, error="no")
            await world.until_in_states(queue, 0 if not delay else 2)
        name, graves = await world.queue()
        for target in (None, graves):
            buffer, queue, tags = await _taken(world, audited=audited, dead_letter_queue_id=target)
            for tag in tags:
                buffer.deliveries.bury(tag, "no")
            await world.until_buried(queue, graves, 2)
            await world.consume(name, len(world.left(graves)))
        buffer, queue, tags = await _taken(world, audited=audited)
        for tag in tags:
            buffer.deliveries.hand_back(tag)
        await world.until_in_states(queue, 0)


async def purging(world: World) -> None:
    """Purge messages that this node had in memory."""
    name, queue = await world.queue()
    await world.publish(name, b"1", b"2")
    world.engine.settlements.purge([row["id"] for row in world.store.messages(queue)], "an operator")
    await world.until_settled(queue)


# Subscriptions.


async def subscribing(world: World) -> None:
    """Subscribe to a topic, receive from it, and acknowledge what has returned by itself."""
    engine, key = world.engine, world.keys[0]
    topic = b"t%d" % next(_numbers)
    engine.subscriptions._owned.clear()  # else the key's subscriptions are not counted again
    made = await world.asked(lambda: engine.subscriptions.create(topic, 1, key))
    assert await world.publish(f"topic:{topic.decode()}", b"1") == [b"1"]
    delivery = await Consumer(made.buffer).next()
    assert delivery is not None
    made.buffer.deliveries.give_back(delivery[0], delay=3600.0, keep_tag=True)
    assert await world.asked(lambda: engine.subscriptions.ack_late(made, [delivery[0]], None)) == set()
    await world.until_settled(made.buffer.id)
    engine.subscriptions.drop_queue(made.buffer.id)
    again = await world.asked(lambda: engine.subscriptions.load(made.id))
    assert again is not None
    assert again.buffer.id == made.buffer.id


# Peers.


async def _here(world: World, name: str, key: int) -> Peer:
    """A peer that connects again until it is connected."""
    for _ in range(20):
        if await _told(peer := Peer(world.engine, name, key), "taken", 0):
            return peer
        world.refused.add(name)
    raise AssertionError(f"{name} never got its mailbox: {peer.error}")


async def _told(peer: Peer, word: str, before: int) -> bool:
    """Wait until a peer has been told this more often than before; False when its connection ends."""
    await peer.until(lambda: peer.told.count(word) > before or peer.error)
    return peer.error is None


async def _durable(peer: Peer) -> bool:
    """Wait until all that a peer has sent is durable; False when its connection ends."""
    before = peer.told.count("answer")
    peer.room.take_in(Ask(peer.mailbox))
    return await _told(peer, "answer", before)


async def _again(world: World, peer: Peer) -> Peer:
    """A peer whose connection has ended connects again."""
    world.refused.add(peer.name)
    peer.leave()
    return await _here(world, peer.name, peer.mailbox.key)


async def _sent(world: World, sender: Peer, to: str | None, *ids: str) -> Peer:
    """Send letters until they are durable; returns the connection that did."""
    sender.post(to, *ids)
    while not await _durable(sender):
        sender = await _again(world, sender)
        sender.post(to, *ids)
    return sender


async def _letters(world: World, peer: Peer, keys: list[str]) -> None:
    """A peer gets these letters, acknowledges them until the store has none of them, and leaves."""
    left = "select 1 from queues_message where key = any(%s) and state <> 3"
    got: list[str] = []
    while world.store.rows(left, keys):
        await _until_got(peer, set(keys) - set(got))
        got += [letter.key for letter in peer.letters]
        peer.ack(*dict.fromkeys(got), "unknown")
        if not await _durable(peer):
            peer = await _again(world, peer)
    assert list(dict.fromkeys(got)) == keys
    peer.leave()


async def _until_got(peer: Peer, keys: set[str]) -> None:
    await peer.until(lambda: {letter.key for letter in peer.letters} >= keys or peer.error)


async def peers(world: World) -> None:
    """Peers write to each other, and to queues, and acknowledge; two others go on meanwhile."""
    n, (key, other) = next(_numbers), world.keys
    alice, bob = await _here(world, f"alice{n}", key), await _here(world, f"bob{n}", key)
    alice = await _sent(world, alice, bob.name, f"{n}a", f"{n}b")
    bob.leave()
    alice = await _sent(world, alice, bob.name, f"{n}c")
    await _letters(world, await _here(world, bob.name, key), [f"{n}a", f"{n}b", f"{n}c"])
    carol, dave = await _here(world, f"carol{n}", other), await _here(world, f"dave{n}", other)
    queue, queue_id = await world.queue()
    for address in (queue, "missing"):
        for letter in (f"{n}{address}1", f"{n}{address}2"):
            alice.room.take_in(Forward(alice.mailbox, letter, Destination.parse(f"queue:{address}"), b"{}"))
    carol.post(dave.name, f"{n}carol")
    alice = await _sent(world, alice, None, f"{n}all")
    assert len(world.store.messages(queue_id)) + (alice.name in world.refused) >= 2
    await _until_got(dave, {f"{n}carol"})
    assert (carol.error, dave.error) == (None, None)
    for peer in (alice, carol, dave):
        peer.leave()


# Notifications between nodes.


async def telling(world: World) -> None:
    """Two nodes: one publishes, the other's consumer gets it; one tells the other of an acknowledgement."""
    other = await world.another()
    name, queue = await world.queue()
    consumer = Consumer(await world.asked(lambda: other.queue(name)))
    waiting = asyncio.create_task(consumer.next())
    serving = "select from queues_interest where queue_id = %s"
    await world.store.until(lambda: world.store.rows(serving, queue), "the interest")
    await world.publish(name, b"1", b"2")
    await world.publish((await world.queue())[0], b"of a queue that no node is known to serve")
    for delivery in (await waiting, await consumer.next()):
        assert delivery is not None
        world.engine.announcer.say(RemoteAck(queue, (delivery[0],), None))
    served = other.prefetched_queues.queues[queue]
    await world.store.until(lambda: not served.unacked, "the acknowledgements are obeyed")
    await world.until_settled(queue)


# By the clock.


async def by_the_clock(world: World) -> None:
    """A delay ends, a message expires, counts are folded, nothing of a cold queue stays in memory."""
    (name, queue), (_, expiring) = await world.queue(), await world.queue()
    await world.put(queue, b"1")
    assert await world.consume(name, 1) == [b"1"]
    put = (
        "insert into queues_message (id, queue_id, payload, state, due_at, expires_at)"
        " values (nextval('queues_message_id'), %s, %s, %s, now(), %s) returning 1"
    )
    await world.store.change(put, queue, b"2", 2, None)
    await world.store.change(put, expiring, b"3", 0, datetime.now(UTC))
    assert await world.consume(name, 1) == [b"2"]
    await world.publish(name, b"4")
    counted = "select from queues_queuecount where queue_id = %s and published > 0"
    await world.store.until(lambda: world.store.rows(counted, queue), "the count")
    await world.store.until(lambda: not world.store.messages(expiring), "the expiry")
    assert await world.consume(name, 1) == [b"4"]


async def serving_many(world: World) -> None:
    """A node that serves many queues finds a message that no notification told of."""
    with patch("queues.engine.cluster.tidying.MANY", 0):
        name, queue = await world.queue()
        buffer = await world.buffer(name)
        taken = asyncio.create_task(Consumer(buffer).bodies(1))
        await world.store.until(lambda: buffer.interest.known and not buffer.backlog.unclaimed, "it has looked")
        await world.put(queue, b"1")
        assert await taken == [b"1"]


async def nodes(world: World) -> None:
    """A node dies with a message leased to it."""
    name, queue = await world.queue()
    await world.put(queue, b"1")
    sql = (
        "with gone as"
        " (insert into queues_node (name, host, pid, first_message_id) values ('gone', 'h', 0, 1) returning id)"
        " update queues_message set state = 1, node_id = gone.id from gone where queue_id = %s returning gone.id"
    )
    [row] = await world.store.change(sql, queue)
    assert await world.consume(name, 1) == [b"1"]
    gone = "select from queues_node where id = %s"
    await world.store.until(lambda: not world.store.rows(gone, row["id"]), "its end")


# Keys.


async def logging_in(world: World) -> None:
    """An API key is looked up by its text and its name, and a change of it is obeyed."""
    engine, key = world.engine, world.keys[0]
    engine.grants.forget(key)
    assert await world.asked(lambda: engine.authenticate(world.text, "blipmq")) is not None
    assert await world.asked(lambda: engine.grant_named("first")) is not None
    changed = asyncio.Event()
    engine.on_key_change[:] = [lambda id: changed.set() if id == key else None]
    sql = "update queues_apikey set publish = publish || array['x']::text[] where id = %s returning 1"
    await world.store.change(sql, key)
    async with asyncio.timeout(PATIENCE):
        await changed.wait()


async def asking(world: World) -> None:
    """Requests of listeners and sessions of their own."""
    name, node = f"q{next(_numbers)}", world.engine.node
    make = {"name": name, "max_attempts": 3, "retry_backoff": 1.0, "ack_timeout": 60.0}
    await world.asked(lambda: world.engine.request("ensure_queue", **make))
    queue = await world.asked(lambda: world.engine.queue(name))
    await world.asked(lambda: world.engine.look_up("find_key", queue=queue.id, key="k"))
    await world.asked(lambda: world.engine.request("write_workers", node=node, workers="[]", gone=[]))


async def watching(world: World) -> None:
    """Operators see the connections of clients."""
    session = SimpleNamespace(holds=lambda: (1, 2), consumes=lambda: {3: 1}, disconnect=lambda: None)
    client = world.engine.clients.add("blipmq", f"192.0.2.1:{next(_numbers)}", session)
    shown = "select from queues_connection where address = %s"
    await world.store.until(lambda: world.store.rows(shown, client.address), "its row")
    world.engine.clients.remove(client)
    await world.store.until(lambda: not world.store.rows(shown, client.address), "its end")


async def routing(world: World) -> None:
    """Messages that go by a route are counted, and the counts are folded, as are those of dead letters."""
    (name, queue), (other, graves) = await world.queue(), await world.queue()
    add = "insert into queues_route (source, target) values (%s, %s) returning id"
    [row] = world.store.rows(add, f"queue:{name}", f"queue:{other}")
    await world.publish(name, b"1", b"2")
    tallied = "select from queues_routetally where route_id = %s having sum(carried) = 2"
    await world.store.until(lambda: world.store.rows(tallied, row["id"]), "its tally")
    aged = "update queues_routetally set at = at - interval '1 hour' where route_id = %s returning 1"
    await world.store.change(aged, row["id"])
    total = "select from queues_routecount where route_id = %s and carried = 2"
    await world.store.until(lambda: world.store.rows(total, row["id"]), "its total")
    moved = "insert into queues_deadlettertally (queue_id, target_id, carried, at)" \
        " values (%s, %s, 3, now() - interval '1 hour') returning 1"  # fmt: skip
    await world.store.change(moved, queue, graves)
    total = "select from queues_deadlettercount where queue_id = %s and target_id = %s and carried = 3"
    await world.store.until(lambda: world.store.rows(total, queue, graves), "the total of dead letters")


async def stalling(world: World) -> None:
    """A commit takes long, and the operator is told what it waits for."""
    async with await psycopg.AsyncConnection.connect(world.store.conninfo) as other:
        # The counts, which every publish adds to. One table: locks of several may end in a deadlock.
        await other.execute("lock table only queues_queuetally in share mode")
        batch = world.neighbour.send("neighbour", b"1")
        engine = world.engine
        await world.store.until(lambda: any("a commit" in reason for reason in engine.unready_reasons()), "the news")
    await world.neighbour.wait(batch)


# Lost connections: the engine comes back as a new node, and nothing else is lost.


async def _new_node(world: World, node: int) -> None:
    await world.store.until(lambda: world.engine.available and world.engine.node != node, "the new node")


async def reconnecting(world: World) -> None:
    """The database is away for a moment, and comes back without what was last confirmed."""
    name, _ = await world.queue(audited=True)
    made = await world.engine.subscriptions.create(b"t", 1, None)
    kept = await world.publish(name, b"1", b"2", b"3")
    node, tag, rewritten = world.engine.node, made.buffer.held.next_tag, world.engine.counts.rewritten
    back = "select setval('queues_message_id', greatest(1, last_value - 12288)) from queues_message_id"
    await world.store.change(back)
    pid = world.engine.connections["writer"].info.backend_pid
    world.store.rows("select pg_terminate_backend(%s)", pid)
    await _new_node(world, node)
    assert await world.consume(name, 3) == kept
    assert await world.publish(name, b"4") == [b"4"]
    assert await world.consume(name, 1) == [b"4"]
    [row] = world.store.rows("select next_tag from queues_subscription where queue_id = %s", made.buffer.id)
    assert row["next_tag"] > tag
    assert world.engine.counts.rewritten == rewritten + 1, "the operator is told"


async def losing_a_commit(world: World) -> None:
    """The connection is lost at the commit of a record: it is seen afterwards whether that was done."""
    buffer, queue, tags = await _taken(world, audited=True)
    node = world.engine.node
    async with await psycopg.AsyncConnection.connect(world.store.conninfo, autocommit=True) as operator:
        await operator.execute(
            b"create or replace function lose() returns trigger language plpgsql as"
            b" $$ begin perform pg_terminate_backend(pg_backend_pid()); return null; end $$"
        )
        await operator.execute(
            "create constraint trigger lose after insert on queues_audit deferrable initially deferred"
            " for each row when (new.event = 'settle') execute function lose()"
        )
        assert buffer.deliveries.ack_many(tags) == []
        await world.store.until(lambda: world.engine.node != node or not world.engine.available, "the loss")
        await operator.execute(b"drop trigger lose on queues_audit")
    await _new_node(world, node)
    await world.until_settled(queue)
    ids = [str(row["id"]) for row in world.store.archived(queue)]
    found = world.store.rows("select record_id from queues_audit where event = 'settle'")
    settled = [id for row in found for id in messages_of(row["record_id"]) if id in ids]
    assert (len(ids), len(settled)) == (2, 2)


async def stopping(world: World) -> None:
    """A node stops in good order, and what it held is another's."""
    other = await world.make_engine()
    name, _ = await world.queue()
    await Producer(other).publish(name, b"1", b"2")
    assert await Consumer(await other.queue(name)).bodies(1, ack=False) == [b"1"]
    node = other.node
    await other.stop(5.0)
    assert await world.consume(name, 2) == [b"1", b"2"]
    await world.store.until(lambda: not world.store.rows("select from queues_node where id = %s", node), "its end")
