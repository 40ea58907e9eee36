"""Letters between named peers: stored once, delivered in order, to one connection at a time, and recorded."""

from __future__ import annotations

import itertools
import json
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import psycopg
import pytest

from peers.codec.envelope import Envelope
from peers.codec.frames import Ignored, parse_frame
from queues.engine.api import Acks, Ask, Destination, Engine, Forward, Letters
from queues.engine.errors import EngineError, MailboxClaimed, TooManyNames, Undeliverable
from queues.engine.mailbox import service
from queues.engine.mailbox.mailbox import Mailbox, PeerMessage
from queues.operations.keys import create_key
from tests.hostile.values import ODD, UNSTORABLE
from tests.lengths import lengths
from tests.queues.engine.conftest import Producer, Store
from tests.tables import lock_waits
from tests.waiting import Changes

pytestmark = pytest.mark.django_db(transaction=True)

MakeEngine = Callable[..., Awaitable[Engine]]


class Letter(NamedTuple):
    """A delivered letter."""

    key: str
    payload: bytes


class Peer:
    """A connection, as a session is one. It remembers what it is told."""

    def __init__(self, engine: Engine, name: str, key: int) -> None:
        assert engine.mailboxes is not None
        self.room = engine.mailboxes
        self.name = name
        self.room_bytes = 1 << 20
        self.told: list[str] = []
        self.letters: list[Letter] = []
        self.names: list[list[str]] = []
        self.error: EngineError | None = None
        self._news = Changes()
        self.mailbox: Mailbox = self.room.take(name, key, self)

    def taken(self, names: list[str]) -> None:
        self._tell("taken", names)

    def answer(self, names: list[str]) -> None:
        self._tell("answer", names)

    def refused(self, error: EngineError) -> None:
        self.error = error
        self._tell("refused")

    def displaced(self) -> None:
        self._tell("displaced")

    def evicted(self) -> None:
        self._tell("evicted")

    def crowd(self, crowded: bool) -> None:
        self._tell("crowded" if crowded else "free")

    def deliver(self, keys: list[str], payloads: list[bytes]) -> None:
        self.letters += map(Letter, keys, payloads)
        self._tell("deliver")

    def wrap(self, letter: PeerMessage) -> bytes:
        if letter.payload == b"bad":
            raise Undeliverable("it is bad")
        return b"wrapped " + letter.payload

    def _tell(self, word: str, names: list[str] | None = None) -> None:
        self.told.append(word)
        if names is not None:
            self.names.append(names)
        self._news.notify()

    async def until(self, condition: Callable[[], Any]) -> None:
        await self._news.until(condition)

    async def here(self) -> Peer:
        await self.until(lambda: "taken" in self.told)
        return self

    def post(self, to: str | None, *ids: str) -> None:
        self.post_run(*((id, to, f"body of {id}".encode()) for id in ids))

    def post_run(self, *letters: tuple[str, str | None, bytes]) -> None:
        """Post letters in one run: of each the id, the recipient and the body."""
        ids, to, bodies = zip(*letters, strict=True)
        self.room.take_in(Letters(self.mailbox, [*ids], [*to], [*bodies]))

    async def ask(self) -> list[str]:
        """The names of connected peers; all letters posted before are durable then."""
        answers = self.told.count("answer")
        self.room.take_in(Ask(self.mailbox))
        await self.until(lambda: self.told.count("answer") > answers)
        return self.names[-1]

    async def send(self, to: str | None, *ids: str) -> None:
        self.post(to, *ids)
        await self.ask()

    async def got(self, count: int) -> list[str]:
        """The keys of the first so many letters."""
        await self.until(lambda: len(self.letters) >= count)
        return [letter.key for letter in self.letters]

    def ack(self, *keys: str) -> None:
        self.room.take_in(Acks(self.mailbox, [*keys]))

    def leave(self) -> None:
        self.room.leave(self.mailbox)


Join = Callable[..., Awaitable[Peer]]


@pytest.fixture
def key() -> int:
    return create_key("peers")[0].pk


@pytest.fixture
def other_key() -> int:
    return create_key("others")[0].pk


@pytest.fixture
async def engine(make_engine: MakeEngine) -> Engine:
    return await make_engine(mailboxes=True)


def audit(store: Store) -> list[tuple[str, str, str, str]]:
    rows = store.rows(
        "select event, record_id, sender, recipient from queues_audit join queues_auditchain c on c.id = chain_id "
        "where name = 'peerbus' order by seq"
    )
    return [(row["event"], row["record_id"], row["sender"], row["recipient"]) for row in rows]


def mailbox(store: Store, name: str) -> list[dict[str, Any]]:
    return store.rows(
        "select m.* from queues_message m join queues_mailbox b using (queue_id) where name = %s order by m.id", name
    )


async def test_a_letter_is_delivered_and_leaves_the_store_when_acknowledged(
    engine: Engine, key: int, store: Store
) -> None:
    alice, bob = await Peer(engine, "alice", key).here(), await Peer(engine, "bob", key).here()
    assert bob.names[0] == ["alice", "bob"]
    alice.post("bob", "m1")
    assert await bob.got(1) == ["m1"]
    assert bob.letters[0].payload == b"body of m1"
    assert [row["state"] for row in mailbox(store, "bob")] == [1]
    bob.ack("m1")
    await bob.ask()
    assert mailbox(store, "bob") == []
    assert audit(store) == [
        ("send", "m1", "alice", "bob"), ("deliver", "m1", "alice", "bob"), ("ack", "m1", "bob", "")
    ]  # fmt: skip
    archived = store.archived(bob.mailbox.queue)
    assert [(row["key"], row["consumer_id"], row["producer_id"]) for row in archived] == [("m1", key, key)]
    assert archived[0]["delivered_at"] is not None


async def test_a_letter_to_an_absent_peer_waits_for_it(engine: Engine, key: int, store: Store) -> None:
    alice, bob = await Peer(engine, "alice", key).here(), await Peer(engine, "bob", key).here()
    bob.leave()
    await alice.send("bob", *(f"m{n}" for n in range(700)))
    assert [row["state"] for row in mailbox(store, "bob")] == [0] * 700
    again = await Peer(engine, "bob", key).here()
    assert await again.got(700) == [f"m{n}" for n in range(700)]


async def test_nothing_is_stored_for_a_name_that_was_never_there(engine: Engine, key: int, store: Store) -> None:
    alice = await Peer(engine, "alice", key).here()
    await alice.send("absent", "m1")
    bob = await Peer(engine, "absent", key).here()
    await alice.send("absent", "m1")
    assert await bob.got(1) == ["m1"]
    assert len(audit(store)) == 2


async def test_a_broadcast_reaches_all_connected_peers_but_its_sender(
    engine: Engine, make_engine: MakeEngine, key: int, store: Store
) -> None:
    other = await make_engine(mailboxes=True)
    names = "alice", "bob", "carol", "gone"
    alice, bob, carol, gone = [
        await Peer(at, name, key).here() for at, name in zip((engine, engine, other, other), names, strict=True)
    ]
    gone.leave()
    assert await carol.ask() == ["alice", "bob", "carol"]
    await alice.send(None, "b1")
    late = await Peer(engine, "late", key).here()
    assert await bob.got(1) == ["b1|bob"]
    assert await carol.got(1) == ["b1|carol"]
    await alice.send("bob", "m2")
    await bob.got(2)
    assert alice.letters == []
    assert late.letters == []
    assert mailbox(store, "gone") == []
    carol.ack("b1|carol")
    await carol.ask()
    assert mailbox(store, "carol") == []
    assert len(mailbox(store, "bob")) == 2


async def test_a_run_of_letters_to_many_keeps_its_order_and_each_id_once(
    engine: Engine, key: int, store: Store
) -> None:
    alice, bob, carol = [await Peer(engine, name, key).here() for name in ("alice", "bob", "carol")]
    away = await Peer(engine, "dave", key).here()
    away.leave()
    to = ["bob", "carol", "bob", "nobody", None, "dave", "bob", "carol", "alice"]
    ids = ["m1", "m2", "m3", "m4", "m5", "m6", "m1", "m7", "m8"]
    alice.post_run(*((id, name, f"{n}".encode()) for n, (id, name) in enumerate(zip(ids, to, strict=True))))
    assert await alice.ask() == ["alice", "bob", "carol"]
    assert [tuple(letter) for letter in bob.letters] == [("m1", b"0"), ("m3", b"2"), ("m5|bob", b"4")]
    assert [tuple(letter) for letter in carol.letters] == [("m2", b"1"), ("m5|carol", b"4"), ("m7", b"7")]
    assert [tuple(letter) for letter in alice.letters] == [("m8", b"8")]
    assert [(row["key"], row["state"]) for row in mailbox(store, "dave")] == [("m6", 0)]
    assert (engine.counts.published, engine.counts.dropped) == (8, 2)
    sent = [("m1", "bob"), ("m2", "carol"), ("m3", "bob"), ("m5|bob", "bob"), ("m5|carol", "carol"), ("m6", "dave")]
    sent += [("m7", "carol"), ("m8", "alice")]
    assert audit(store) == [
        *(("send", id, "alice", name) for id, name in sent),
        *(("deliver", id, "alice", name) for id, name in sent if name != "dave"),
    ]
    alice.post("nobody", "m4")  # nothing was stored of it: its id is not seen
    alice.post("bob", "m4")
    assert (await bob.got(4))[-1] == "m4"


async def test_a_copy_whose_key_is_another_letters_is_dropped_and_costs_no_connection(
    engine: Engine, key: int, store: Store
) -> None:
    alice, bob, carol = [await Peer(engine, name, key).here() for name in ("alice", "bob", "carol")]
    await alice.send("bob", "m1|bob")
    await alice.send(None, "m1")
    alice.post_run(("m2", None, b"copy"), ("m2|bob", "bob", b"letter"), ("m3", "bob", b"last"))
    await alice.ask()
    assert await carol.got(2) == ["m1|carol", "m2|carol"]
    assert await bob.got(3) == ["m1|bob", "m2|bob", "m3"]
    assert bob.letters[1].payload == b"letter"
    assert (alice.error, engine.counts.reconnects, engine.counts.published) == (None, 0, 5)
    assert [row["key"] for row in mailbox(store, "bob")] == ["m1|bob", "m2|bob", "m3"]


async def test_an_id_that_another_node_is_storing_is_waited_for_and_dropped(
    engine: Engine, key: int, store: Store
) -> None:
    alice, bob = await Peer(engine, "alice", key).here(), await Peer(engine, "bob", key).here()
    with psycopg.connect(store.conninfo) as other:
        other.execute("insert into queues_letterseen (id) values ('m2')")
        alice.post("bob", "m1", "m2", "m3")
        await store.until(lambda: store.rows(lock_waits("fivewire mailboxes")), "the wait for the other transaction")
        other.commit()
    await alice.ask()
    assert await bob.got(2) == ["m1", "m3"]
    assert (alice.error, engine.counts.reconnects, engine.counts.dropped) == (None, 0, 1)


async def test_acknowledgements_of_a_run_count_each_by_itself(engine: Engine, key: int, store: Store) -> None:
    alice, bob = await Peer(engine, "alice", key).here(), await Peer(engine, "bob", key).here()
    await alice.send("bob", "m1", "m2", "m3")
    bob.ack("m3", "m3", "made up", "m1")
    await bob.ask()
    assert [row["key"] for row in mailbox(store, "bob")] == ["m2"]
    acks = [id for event, id, *_ in audit(store) if event == "ack"]
    assert sorted(acks) == ["m1", "m3", "m3", "made up"]
    assert engine.counts.acknowledged == 2


async def test_an_id_counts_once_also_after_it_was_acknowledged(engine: Engine, key: int, store: Store) -> None:
    alice, bob, carol = [await Peer(engine, name, key).here() for name in ("alice", "bob", "carol")]
    alice.post("bob", "m1", "m1")
    carol.post("bob", "m1")
    await alice.ask()
    bob.ack(*await bob.got(1))
    await bob.ask()
    await alice.send("bob", "m1")
    await alice.send("carol", "m1")
    await alice.send(None, "m1")
    await alice.send("bob", "m2")
    assert await bob.got(2) == ["m1", "m2"]
    assert carol.letters == []


async def test_a_letter_is_acknowledged_by_its_recipient_only(engine: Engine, key: int, store: Store) -> None:
    alice, bob = await Peer(engine, "alice", key).here(), await Peer(engine, "bob", key).here()
    await alice.send("bob", "m1")
    await bob.got(1)
    alice.ack("m1")
    await alice.ask()
    assert len(mailbox(store, "bob")) == 1
    assert audit(store)[-1] == ("ack", "m1", "alice", "")


async def test_a_name_belongs_to_the_key_that_took_it_first(engine: Engine, key: int, other_key: int) -> None:
    bob = await Peer(engine, "bob", key).here()
    thief = Peer(engine, "bob", other_key)
    await thief.until(lambda: thief.error)
    assert isinstance(thief.error, MailboxClaimed)
    bob.leave()
    again = Peer(engine, "bob", other_key)
    await again.until(lambda: again.error)
    assert bob.told == ["taken"]


async def test_relaxed_a_free_name_and_an_acknowledgement_are_any_keys(
    make_engine: MakeEngine, key: int, other_key: int, store: Store
) -> None:
    engine = await make_engine(mailboxes=True, relaxed_mailboxes=True)
    bob = await Peer(engine, "bob", key).here()
    thief = Peer(engine, "bob", other_key)
    await thief.until(lambda: thief.error)
    bob.leave()
    bob = await Peer(engine, "bob", other_key).here()
    alice = await Peer(engine, "alice", key).here()
    await alice.send("bob", "m1")
    alice.ack("m1")
    await alice.ask()
    assert mailbox(store, "bob") == []


@pytest.mark.parametrize("nodes", [1, 2])
async def test_a_new_connection_takes_over_and_gets_what_the_old_one_did_not_acknowledge(
    engine: Engine, make_engine: MakeEngine, key: int, store: Store, nodes: int
) -> None:
    other = engine if nodes == 1 else await make_engine(mailboxes=True)
    alice, bob = await Peer(engine, "alice", key).here(), await Peer(engine, "bob", key).here()
    await alice.send("bob", "m1", "m2", "m3")
    await bob.got(3)
    bob.ack("m2")
    await bob.ask()
    again = await Peer(other, "bob", key).here()
    await bob.until(lambda: "displaced" in bob.told)
    assert await again.got(2) == ["m1", "m3"]
    assert [row["attempts"] for row in mailbox(store, "bob")] == [1, 1]
    await alice.send("bob", "m4")
    assert await again.got(3) == ["m1", "m3", "m4"]
    bob.leave()
    assert (await alice.ask()) == ["alice", "bob"]
    assert [letter.key for letter in bob.letters] == ["m1", "m2", "m3"]


async def test_an_operator_ends_a_connection_and_frees_the_name(
    engine: Engine, key: int, other_key: int, store: Store
) -> None:
    alice, bob = await Peer(engine, "alice", key).here(), await Peer(engine, "bob", key).here()
    await alice.send("bob", "m1")
    await bob.got(1)
    await store.change("select queues_empty_mailbox(queue_id, true) from queues_mailbox where name = 'bob'")
    await bob.until(lambda: "evicted" in bob.told)
    assert await alice.ask() == ["alice"]
    again = await Peer(engine, "bob", other_key).here()
    assert await again.got(1) == ["m1"]


async def test_letters_of_an_old_connection_after_the_take_over_are_not_stored(
    engine: Engine, make_engine: MakeEngine, key: int, store: Store
) -> None:
    other = await make_engine(mailboxes=True)
    alice, bob = await Peer(engine, "alice", key).here(), await Peer(engine, "bob", key).here()
    again = await Peer(other, "alice", key).here()
    await alice.until(lambda: "displaced" in alice.told)
    alice.post("bob", "late")
    await again.send("bob", "m1")
    assert await bob.got(1) == ["m1"]
    await bob.ask()
    assert [row["key"] for row in mailbox(store, "bob")] == ["m1"]


async def test_acknowledgements_alone_are_written_soon(engine: Engine, key: int, store: Store) -> None:
    alice, bob = await Peer(engine, "alice", key).here(), await Peer(engine, "bob", key).here()
    await alice.send("bob", "m1")
    bob.ack(*await bob.got(1))
    await store.until(lambda: mailbox(store, "bob") == [], "it is acknowledged")


async def test_acknowledgements_are_written_with_the_next_letter(
    engine: Engine, key: int, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "GROWTH", 3600.0)
    alice, bob = await Peer(engine, "alice", key).here(), await Peer(engine, "bob", key).here()
    await alice.send("bob", "m1")
    bob.ack(*await bob.got(1))
    alice.post("bob", "m2")
    await bob.got(2)
    assert [row["key"] for row in mailbox(store, "bob")] == ["m2"]


async def test_a_window_that_is_full_opens_with_acknowledgements(make_engine: MakeEngine, key: int) -> None:
    engine = await make_engine(mailboxes=True, mailbox_window=3)
    alice, bob = await Peer(engine, "alice", key).here(), await Peer(engine, "bob", key).here()
    await alice.send("bob", *(f"m{n}" for n in range(10)))
    assert len(await bob.got(3)) == 3
    await bob.ask()
    assert len(bob.letters) == 3
    for n in range(7):
        bob.ack(f"m{n}")
        assert await bob.got(n + 4) == [f"m{m}" for m in range(n + 4)]


async def test_a_peer_whose_socket_is_full_gets_nothing_until_it_has_drained(
    engine: Engine, key: int, store: Store
) -> None:
    alice, bob = await Peer(engine, "alice", key).here(), await Peer(engine, "bob", key).here()
    bob.room_bytes = 0
    await alice.send("bob", "m1", "m2")
    await bob.ask()
    assert bob.letters == []
    bob.room_bytes = 1
    bob.room.drained(bob.mailbox)
    assert await bob.got(1) == ["m1"]
    bob.room.drained(bob.mailbox)
    assert await bob.got(2) == ["m1", "m2"]


async def test_of_one_run_each_peer_is_given_what_it_has_room_for(make_engine: MakeEngine, key: int) -> None:
    engine = await make_engine(mailboxes=True, mailbox_window=3)
    alice, bob, carol = [await Peer(engine, name, key).here() for name in ("alice", "bob", "carol")]
    carol.room_bytes = 1
    to = {"b1": "bob", "c1": "carol", "b2": "bob", "all": None, "b3": "bob", "b4": "bob"}
    alice.post_run(*((id, name, b"body") for id, name in to.items()))
    assert await bob.got(3) == ["b1", "b2", "all|bob"]
    assert await carol.got(2) == ["c1", "all|carol"]
    assert engine.counts.claimed == 1  # carol's second one: all others were leased as they were stored
    bob.ack("b1", "b2")
    assert await bob.got(5) == ["b1", "b2", "all|bob", "b3", "b4"]
    assert len(carol.letters) == 2


async def test_letters_of_several_peers_are_fetched_together_each_within_its_room(
    engine: Engine, key: int, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MAX_LOCALS", 0)  # nothing is leased as it is stored
    alice = await Peer(engine, "alice", key).here()
    readers = [await Peer(engine, f"reader{n}", key).here() for n in range(4)]
    narrow, full = readers[2:]
    narrow.room_bytes, full.room_bytes = 1, 0
    for n in range(10):
        for reader in readers:
            alice.post(reader.name, f"{reader.name}-{n}")
    await alice.ask()
    for reader in readers[:3]:  # a narrow one is given at least one letter at a time
        assert await reader.got(10) == [f"{reader.name}-{n}" for n in range(10)]
    assert (full.letters, engine.counts.claimed, narrow.told.count("deliver")) == ([], 30, 10)
    full.room_bytes = 1 << 20
    full.room.drained(full.mailbox)
    assert await full.got(10) == [f"{full.name}-{n}" for n in range(10)]
    assert {row["state"] for row in mailbox(store, full.name)} == {1}


async def test_an_operator_pauses_a_mailbox(engine: Engine, key: int, store: Store) -> None:
    alice, bob = await Peer(engine, "alice", key).here(), await Peer(engine, "bob", key).here()
    await store.change("update queues_queue set paused = true where name = '_peer/bob' returning id")
    await store.until(lambda: bob.mailbox.policy and bob.mailbox.policy.paused, "the pause was heard")
    await alice.send("bob", "m1")
    await bob.ask()
    assert bob.letters == []
    await store.change("update queues_queue set paused = false where name = '_peer/bob' returning id")
    assert await bob.got(1) == ["m1"]


async def test_letters_enter_queues_and_topics(engine: Engine, key: int, store: Store) -> None:
    orders = store.queue("orders")
    alice = await Peer(engine, "alice", key).here()
    for id, name in (("m1", "orders"), ("m1", "orders"), ("m2", "nowhere")):
        alice.room.take_in(Forward(alice.mailbox, id, Destination("queue", name.encode()), b'{"n":1}'))
    await alice.ask()
    assert [(bytes(row["payload"]), row["content"]) for row in store.messages(orders)] == [(b'{"n":1}', 3)]
    assert audit(store) == [("send", "m1", "alice", "queue:orders")]
    store.queue("nowhere")
    alice.room.take_in(Forward(alice.mailbox, "m2", Destination("queue", b"nowhere"), b"{}"))
    await alice.ask()
    assert len(audit(store)) == 2


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


async def test_letters_that_are_dropped_are_told_by_the_log_and_counted_by_reason(
    engine: Engine, key: int, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    store.queue("full", max_length=1)
    alice = await Peer(engine, "alice", key).here()
    for n, address in enumerate(["queue:nowhere", "queue:full"] * 2 + ["topic:unheard"]):
        alice.room.take_in(Forward(alice.mailbox, f"m{n}", Destination.parse(address), b"{}"))
        await alice.ask()
    await alice.send(None, "m5")
    await alice.send("alice", "m6", "m6")
    await alice.send("absent", "m7")
    assert lines(caplog) == [
        "1 letter(s) of the peer 'alice' to 'queue:nowhere' dropped: there is no such queue",
        "1 letter(s) of the peer 'alice' to 'queue:full' dropped: the queue is full",
        "1 letter(s) of the peer 'alice' to 'absent' dropped: no peer has this name",
    ]
    dropped = {"no_queue": 2, "full": 1, "unheard": 2, "repeated": 1, "unknown": 1, "failed": 0}
    assert engine.mailboxes.dropped == dropped
    assert engine.counts.dropped == sum(dropped.values())


async def test_made_up_names_of_recipients_neither_flood_nor_forge_the_log(
    engine: Engine, key: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = 1000.0
    monkeypatch.setattr(service, "now", lambda: time)
    alice = await Peer(engine, "alice\n2026-11-29 ERROR", key).here()
    await alice.send("bob\nERROR forged\x1b[2J\u202e", "first")
    for n in range(50):
        alice.post_run(*((f"{n}/{m}", f"made up {m} {'x' * 1000}", b"{}") for m in range(100)))
        alice.room.take_in(Forward(alice.mailbox, f"{n}", Destination("queue", b"made up\n%d" % n), b"{}"))
    await alice.ask()
    assert len(lines(caplog)) == 2
    time += service.TELL_AGAIN
    await alice.send("last", "last")
    first, _, last = lines(caplog)
    assert first.startswith(r"1 letter(s) of the peer 'alice\n2026-11-29 ERROR' to 'bob\nERROR forged\x1b[2J\u202e' d")
    assert last.startswith("5001 letter(s) of the peer ")
    assert max(map(len, lines(caplog))) < 1000
    assert all(line.isprintable() for line in lines(caplog))
    assert engine.mailboxes.dropped["unknown"] == 5002


async def test_whatever_a_frame_names_is_stored_or_dropped_and_costs_no_connection(
    engine: Engine, key: int, store: Store
) -> None:
    """NUL, halves of surrogate pairs, every odd character: what the codec takes, the store takes."""
    texts = [*ODD, *UNSTORABLE, "é" * 256, "*?[]", "queue:", "topic:\udcff"]
    alice, bob = [await Peer(engine, name, key).here() for name in ("alice", "bob")]
    frames = [
        parse_frame(json.dumps({"protocol_version": "v1", "to": to, "id": f"{id}{n}", "body": text}).encode())
        for n, text in enumerate(texts) for to, id in ((text, "to"), ("bob", text))
    ]  # fmt: skip
    taken = [frame for frame in frames if isinstance(frame, Envelope)]
    assert all(frame.reason for frame in frames if isinstance(frame, Ignored))
    assert len(texts) < len(taken) < len(frames)
    for frame in taken:
        alice.post_run((frame.id, frame.to, frame.text))
    await alice.ask()
    expected = [frame.id for frame in taken if frame.to == "bob"]
    assert await bob.got(len(expected)) == expected
    assert (alice.error, bob.error, engine.health.isolated) == (None, None, {})
    assert engine.mailboxes.dropped["unknown"] == len(taken) - len(expected)


async def test_a_route_brings_messages_to_a_peer(engine: Engine, key: int, store: Store) -> None:
    store.queue("orders")
    bob = await Peer(engine, "bob", key).here()
    await store.change("insert into queues_route (source, target) values ('queue:orders', 'peer:bob') returning id")
    await Producer(engine).publish("queue:orders", b"one", b"bad", b"two")
    await bob.got(2)
    assert [letter.payload for letter in bob.letters] == [b"wrapped one", b"wrapped two"]
    dead = await store.until(
        lambda: [row for row in mailbox(store, "bob") if row["state"] == 3], "what cannot be delivered is a dead letter"
    )
    assert bytes(dead[0]["payload"]) == b"bad"
    assert dead[0]["error"].endswith("it is bad")
    bob.ack(*[letter.key for letter in bob.letters])
    await bob.ask()
    assert [row["state"] for row in mailbox(store, "bob")] == [3]
    one = bob.letters[0].key
    assert [row for row in audit(store) if row[1] == one] == [
        ("send", one, "fivewire", "bob"), ("deliver", one, "fivewire", "bob"), ("ack", one, "bob", "")
    ]  # fmt: skip


async def test_after_the_database_was_away_nothing_is_lost_and_nothing_comes_twice(
    engine: Engine, key: int, store: Store
) -> None:
    alice, bob = await Peer(engine, "alice", key).here(), await Peer(engine, "bob", key).here()
    await alice.send("bob", "m1")
    await bob.got(1)
    store.cut()
    alice.post("bob", "m2")
    bob.ack("m1")
    alice.post("bob", "m3")
    assert await bob.got(3) == ["m1", "m2", "m3"]
    bob.ack("m2", "m3")
    await bob.ask()
    assert mailbox(store, "bob") == []
    assert [event for event, *_ in audit(store)].count("send") == 3
    assert bob.told.count("taken") == 1


async def test_a_mailbox_that_was_taken_while_the_database_was_away_is_lost(
    engine: Engine, make_engine: MakeEngine, key: int, store: Store
) -> None:
    other = await make_engine(mailboxes=True)
    alice, bob = await Peer(other, "alice", key).here(), await Peer(engine, "bob", key).here()
    assert engine.mailboxes is not None
    pids = [at.info.backend_pid for at in engine.connections.values()]
    store.rows("select pg_terminate_backend(pid) from pg_stat_activity where pid = any(%s)", pids)
    again = await Peer(other, "bob", key).here()
    await bob.until(lambda: "displaced" in bob.told)
    await alice.send("bob", "m1")
    assert await again.got(1) == ["m1"]
    assert bob.letters == []


@pytest.mark.parametrize("take_overs", lengths(short=60, long=250))
async def test_each_senders_order_holds_over_many_take_overs(
    engine: Engine, make_engine: MakeEngine, key: int, store: Store, take_overs: int
) -> None:
    nodes = itertools.cycle((engine, await make_engine(mailboxes=True)))
    alice, bob = await Peer(engine, "alice", key).here(), await Peer(engine, "bob", key).here()
    received: dict[str, None] = {}
    posted = 0
    for round in range(take_overs):
        if round % 2:
            bob = await Peer(next(nodes), "bob", key).here()
        else:
            alice = await Peer(next(nodes), "alice", key).here()
        alice.post("bob", *(f"m{posted + n:05}" for n in range(4)))
        posted += 4
        await alice.ask()
        bob.ack(*[letter.key for letter in bob.letters if letter.key not in received][:3])
        received |= dict.fromkeys(letter.key for letter in bob.letters)
    await bob.got(posted - len([key for key in received if key not in {letter.key for letter in bob.letters}]))
    received |= dict.fromkeys(letter.key for letter in bob.letters)
    assert list(received) == sorted(received)


async def test_made_up_acks_do_not_grow_the_audit_chain(
    engine: Engine, key: int, other_key: int, store: Store
) -> None:
    alice, bob = await Peer(engine, "alice", key).here(), await Peer(engine, "bob", other_key).here()
    for n in range(20):
        alice.ack(*(f"made up {n}-{m}" for m in range(500)))
        await alice.ask()
    assert 0 < len(audit(store)) < 1000
    assert engine.counts.stray_acks == 10_000 - len(audit(store))
    before = len(audit(store))
    await bob.send("alice", *(f"m{n}" for n in range(300)))
    alice.ack(*await alice.got(300))
    await alice.ask()
    assert [event for event, *_ in audit(store)[before:] if event == "ack"] == ["ack"] * 300
    bob.ack("another key's")
    await bob.ask()
    assert audit(store)[-1] == ("ack", "another key's", "bob", "")


async def test_an_ack_of_a_real_letter_is_recorded_however_many_were_made_up(
    engine: Engine, key: int, store: Store
) -> None:
    bob = await Peer(engine, "bob", key).here()
    bob.leave()
    alice = await Peer(engine, "alice", key).here()
    await alice.send("bob", "m1")
    await store.change("update queues_queue set paused = true where name = '_peer/bob' returning id")
    again = await Peer(engine, "bob", key).here()
    again.ack(*(f"made up {n}" for n in range(200)), "m1")
    await again.ask()
    assert audit(store)[-1] == ("ack", "m1", "bob", "")
    assert mailbox(store, "bob") == []


async def test_a_peer_that_sends_faster_than_it_is_written_is_not_read_from_until_it_is(
    make_engine: MakeEngine, key: int, other_key: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MAX_PENDING", 10)
    engine = await make_engine(mailboxes=True)
    alice, bob = await Peer(engine, "alice", key).here(), await Peer(engine, "bob", other_key).here()
    alice.post("bob", *(f"m{n}" for n in range(10)))
    assert alice.told[-1] != "crowded"
    alice.ack("made up")
    assert alice.told[-1] == "crowded"
    await alice.until(lambda: "free" in alice.told)
    assert (alice.mailbox.pending, alice.mailbox.pending_bytes) == (0, 0)
    alice.post("bob", *(f"n{n}" for n in range(30)))
    await alice.ask()
    assert alice.told.count("crowded") == alice.told.count("free") == 2
    assert "crowded" not in bob.told
    assert engine.mailboxes is not None
    assert engine.mailboxes.waiting_bytes == 0


async def test_the_bytes_that_the_peers_of_a_key_may_have_waiting_are_limited_together(
    make_engine: MakeEngine, key: int, other_key: int
) -> None:
    engine = await make_engine(mailboxes=True, key_pending_bytes=1000)
    alice, bob = await Peer(engine, "alice", key).here(), await Peer(engine, "bob", key).here()
    carol = await Peer(engine, "carol", other_key).here()
    alice.post_run(("m1", "carol", b"x" * 900))
    carol.post_run(("m2", "alice", b"x" * 900))
    assert "crowded" not in alice.told
    bob.post_run(("m3", "carol", b"x" * 900))
    assert bob.told[-1] == "crowded"
    await bob.until(lambda: "free" in bob.told)
    await carol.ask()
    assert "crowded" not in carol.told


async def test_a_key_makes_no_more_names_than_it_may_and_keeps_those_it_has(
    make_engine: MakeEngine, key: int, other_key: int
) -> None:
    engine = await make_engine(mailboxes=True, most_names=2)
    alice, bob = await Peer(engine, "alice", key).here(), await Peer(engine, "bob", key).here()
    carol = Peer(engine, "carol", key)
    await carol.until(lambda: carol.error)
    assert isinstance(carol.error, TooManyNames)
    bob.leave()
    await alice.ask()
    await Peer(engine, "bob", key).here()
    assert await (await Peer(engine, "carol", other_key).here()).ask() == ["alice", "bob", "carol"]
