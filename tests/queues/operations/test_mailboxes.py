"""Operators' actions on peers' mailboxes: in the tables, and on connected peers."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from channels.db import database_sync_to_async
from django.db import connection, transaction
from django.utils import timezone

from queues.engine.api import Engine, options_from_settings
from queues.models import ApiKey, ArchivedMessage, AuditJournalEntry, Content, Mailbox, Message, Node, Queue, State
from queues.operations import mailboxes
from queues.operations.audit_log import shell_operator
from queues.operations.keys import create_key
from queues.operations.mailboxes import (
    MailboxBusy,
    MailboxConnected,
    MailboxNotConnected,
    MailboxNotEmpty,
    MailboxNotFound,
    delete_mailbox,
    disconnect,
    free_name,
    get_mailbox,
    node_of,
)
from queues.operations.messages import purge_batches
from tests.queues.engine.mailbox.test_service import Peer
from tests.queues.shell import Outcome, Shell
from tests.queues.store import another_connection, assert_counts_are_exact, listening, make_node, make_queue, store


def make_peer(name: str = "bob", node: Node | None = None, owner: ApiKey | None = None) -> Mailbox:
    """A mailbox; with a node its peer has been connected there for five minutes."""
    queue = make_queue(f"_peer/{name}", kind="mailbox", max_attempts=0)
    since = timezone.now() - timedelta(minutes=5, seconds=9)
    return Mailbox.objects.create(
        queue=queue, name=name, owner=owner, node=node, connection=None if node is None else 7,
        connected_at=None if node is None else since,
    )  # fmt: skip


def letters(peer: Mailbox, state: State = State.READY, count: int = 1, **fields: Any) -> list[Message]:
    """Letters from alice, as the mailbox service stores them; leased ones are out on the connection 7."""
    if state == State.LEASED:
        fields |= {"node": peer.node, "tag": 7}
    fields = {"content": Content.LETTER, "headers": {"from": "alice"}, "payload": b'{"body":1}', **fields}
    return store(peer.queue, state, count, **fields)


def lock_timeout() -> str:
    with connection.cursor() as cursor:
        cursor.execute("show lock_timeout")
        return str(cursor.fetchone()[0])


@pytest.mark.django_db
class TestInTheTables:
    """Without a node that would do anything."""

    def test_a_node_that_has_just_died_is_named_by_its_number(self) -> None:
        node = make_node()
        make_peer("bob", node)
        Node.objects.all().delete()
        assert node_of(get_mailbox("bob")) == f"node {node.pk}"

    def test_a_disconnected_peer_keeps_its_name_and_gets_its_letters_again(self) -> None:
        key, _ = create_key("phones")
        bob = make_peer("bob", make_node(), key)
        [out] = letters(bob, State.LEASED)
        disconnect("bob")
        bob.refresh_from_db()
        assert (bob.node_id, bob.connection, bob.owner) == (None, None, key)
        assert bob.left_at is not None
        out.refresh_from_db()
        assert (out.state, out.node_id, out.tag, out.attempts) == (State.READY, None, None, 1)
        assert_counts_are_exact(bob.queue)

    def test_a_freed_name_is_absents(self) -> None:
        key, _ = create_key("phones")
        make_peer("away", None, key), make_peer("here", make_node(), key)
        assert (free_name("away"), free_name("here")) == (False, True)
        assert {(peer.owner, peer.node_id, peer.connection) for peer in Mailbox.objects.all()} == {(None, None, None)}

    def test_failed_operations_are_reported(self) -> None:
        make_peer("bob")
        for operation in (disconnect, free_name, delete_mailbox):
            for name in ("absent", "", "\0", "\ud800", "x" * 300):
                with pytest.raises(MailboxNotFound, match="There is no peer"):
                    operation(name)
        with pytest.raises(MailboxNotConnected, match="'bob' is not connected"):
            disconnect("bob")

    def test_a_mailbox_in_use_is_deleted_only_by_force(self) -> None:
        bob, carol = make_peer("bob", make_node()), make_peer("carol")
        letters(carol, count=2)
        with pytest.raises(MailboxConnected, match="'bob' is connected"):
            delete_mailbox("bob")
        with pytest.raises(MailboxNotEmpty, match="'carol' holds 2 letters"):
            delete_mailbox("carol")
        assert Mailbox.objects.get(name="bob").node_id == bob.node_id
        assert_counts_are_exact(carol.queue)

    def test_an_empty_mailbox_is_deleted_with_its_queue(self) -> None:
        make_peer("bob"), make_peer("carol")
        assert delete_mailbox("bob") == 0
        assert lock_timeout() == "0"
        assert [queue.name for queue in Queue.objects.all()] == ["_peer/carol"]
        assert Mailbox.objects.get().name == "carol"

    def test_force_deletes_every_letter_whatever_its_state(self) -> None:
        bob = make_peer("bob", make_node())
        for state in (State.READY, State.LEASED, State.DEAD, State.DELAYED):
            letters(bob, state, 2)
        steps: list[int] = []
        assert delete_mailbox("bob", force=True, progress=steps.append) == 8
        assert steps == [2, 6, 8, 8]  # those in flight wait again by then, before the peer is locked out
        assert not Message.objects.exists()
        assert not Queue.objects.exists()
        assert ArchivedMessage.objects.filter(outcome=2).count() == 8


@pytest.mark.django_db
class TestAtTheShell:
    """`manage.py peer free` and `peer disconnect`."""

    def test_a_peer_is_disconnected(self, shell: Shell) -> None:
        bob = make_peer("bob", make_node())
        assert shell("peer", "disconnect", "bob") == Outcome(0, "disconnected bob\n", "")
        bob.refresh_from_db()
        assert bob.connection is None
        noted = AuditJournalEntry.objects.get(chain="operators")
        assert (noted.event, noted.record_id, noted.sender) == ("disconnect", "peer:bob", shell_operator())

    def test_a_name_is_freed_after_a_question(self, shell: Shell) -> None:
        key, _ = create_key("phones")
        make_peer("bob", make_node(), key)
        asked = shell("peer", "free", "bob")
        assert asked.status == 2
        assert "bob belongs to the API key phones." in asked.err
        assert "Repeat it with --yes" in asked.err
        assert Mailbox.objects.get().owner == key
        assert shell("peer", "free", "bob", "--yes") == Outcome(0, "freed bob, which was connected\n", "")
        assert shell("peer", "free", "bob", "--yes") == Outcome(0, "freed bob\n", "")
        assert Mailbox.objects.get().owner is None
        assert "bob has no owner already." in shell("peer", "free", "bob").err
        assert AuditJournalEntry.objects.filter(event="free", record_id="peer:bob").count() == 2

    def test_failed_operations_are_reported_with_status_1(self, shell: Shell) -> None:
        make_peer("bob")
        for arguments, reason in (
            (("free", "absent", "--yes"), "There is no peer 'absent'."),
            (("disconnect", "absent"), "There is no peer 'absent'."),
            (("disconnect", "bob"), "'bob' is not connected."),
        ):
            outcome = shell("peer", *arguments)
            assert (outcome.status, outcome.out) == (1, "")
            assert reason in outcome.err
            assert "Traceback" not in outcome.err


@pytest.mark.django_db(transaction=True)
class TestAmongTransactions:
    """With others at work in the database."""

    @pytest.fixture(autouse=True)
    def impatient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("QUEUE_TIMEOUT", "TABLE_TIMEOUT"):
            monkeypatch.setattr(mailboxes, name, "50")

    @pytest.mark.parametrize(
        "sql", ["select 1 from queues_queue for key share", "select 1 from queues_mailbox"], ids=["publishes", "sends"]
    )
    def test_a_mailbox_in_use_by_an_open_transaction_is_not_deleted(self, sql: str) -> None:
        bob = make_peer("bob")
        with another_connection() as other:
            other.execute(sql)
            with pytest.raises(MailboxBusy, match="'bob' is in use by an open transaction"):
                delete_mailbox("bob")
        assert lock_timeout() == "0"
        assert (Queue.objects.get().paused, Mailbox.objects.get()) == (False, bob)
        assert delete_mailbox("bob") == 0

    def test_a_deletion_that_is_rolled_back_leaves_everything(self) -> None:
        bob = make_peer("bob")
        letters(bob, count=3)
        with transaction.atomic():
            assert delete_mailbox("bob", force=True) == 3
            transaction.set_rollback(True)
        assert Mailbox.objects.get() == bob
        assert assert_counts_are_exact(bob.queue).ready == 3

    def test_a_peer_that_registers_while_its_mailbox_is_deleted_is_closed(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bob, node = make_peer("bob"), make_node()
        letters(bob, count=2)

        def purge_and_come(*arguments: Any) -> Iterator[int]:
            yield from purge_batches(*arguments)
            Mailbox.objects.update(node=node, connection=8)

        monkeypatch.setattr(mailboxes, "purge_batches", purge_and_come)
        with listening() as heard:
            assert delete_mailbox("bob", force=True) == 2
            assert heard.take("evicted") == [bob.pk]
        assert not Queue.objects.exists()

    def test_nodes_are_told_at_the_commit(self) -> None:
        bob = make_peer("bob", make_node())
        with listening() as heard:
            with transaction.atomic():
                disconnect("bob")
                assert heard.take("evicted") == []
            assert heard.take("evicted") == [bob.pk]


MakeEngine = Callable[[], Awaitable[Engine]]


@pytest.fixture
async def make_engine(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MakeEngine]:
    """Start nodes that serve peers. An operator has all the time that their transactions may take."""
    for name in ("QUEUE_TIMEOUT", "TABLE_TIMEOUT"):
        monkeypatch.setattr(mailboxes, name, "60000")
    started: list[Engine] = []

    async def make() -> Engine:
        engine = Engine(dataclasses.replace(options_from_settings("test"), mailboxes=True))
        await engine.start()
        started.append(engine)
        return engine

    yield make
    for engine in started:
        await engine.stop(5.0)


operate = database_sync_to_async


@pytest.mark.parametrize("operation", [disconnect, free_name, delete_mailbox])
async def test_a_connected_peer_is_told_to_go(make_engine: MakeEngine, operation: Callable[..., Any]) -> None:
    key, _ = await operate(create_key)("phones")
    engine = await make_engine()
    alice, bob = await Peer(engine, "alice", key.pk).here(), await Peer(engine, "bob", key.pk).here()
    await alice.send("bob", "m1")
    await bob.got(1)
    await operate(operation)("bob", **({"force": True} if operation is delete_mailbox else {}))
    await bob.until(lambda: "evicted" in bob.told)
    assert await alice.ask() == ["alice"]


async def test_after_its_name_was_freed_another_key_gets_a_peers_letters(make_engine: MakeEngine) -> None:
    key, other = (await operate(create_key)("phones"))[0], (await operate(create_key)("tablets"))[0]
    engine = await make_engine()
    alice, bob = await Peer(engine, "alice", key.pk).here(), await Peer(engine, "bob", key.pk).here()
    await alice.send("bob", "m1")
    await bob.got(1)
    assert await operate(free_name)("bob") is True
    again = await Peer(engine, "bob", other.pk).here()
    assert await again.got(1) == ["m1"]


async def test_a_deleted_peer_begins_anew_and_nothing_is_left_of_what_was_sent_meanwhile(
    make_engine: MakeEngine,
) -> None:
    key, _ = await operate(create_key)("phones")
    one, two = await make_engine(), await make_engine()
    alice, bob = await Peer(one, "alice", key.pk).here(), await Peer(two, "bob", key.pk).here()

    async def send() -> None:
        for n in range(60):
            alice.post("bob", *(f"{n}-{i}" for i in range(20)))
            await alice.ask()

    sending = asyncio.create_task(send())
    await bob.got(1)
    await operate(delete_mailbox)("bob", force=True)
    await sending
    assert await operate(Message.objects.count)() == 0
    again = await Peer(two, "bob", key.pk).here()
    await alice.send("bob", "new")
    assert await again.got(1) == ["new"]
