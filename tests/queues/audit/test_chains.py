"""Appending: in the transaction of what is recorded, without forks or gaps, with any number of writers; the journal."""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, close_old_connections, connection, connections, transaction
from psycopg.conninfo import make_conninfo

from queues.audit.chains import append, append_all, get_chain, journal, queue_chain, seal, waiting
from queues.audit.errors import HeadNotLocked, InvalidEvent, NoSuchChain
from queues.audit.events import MAX_ROWS, AuditEvent, AuditRecord, append_parameters
from queues.audit.verify import chain_names, verify
from queues.database.parameters import connection_parameters
from queues.engine import audit as engine_audit
from queues.engine.database import Connection, connect
from queues.engine.statements import statement
from queues.models import AuditHead, AuditJournalEntry, AuditRow
from tests.process import Process
from tests.queues.audit.conftest import CHAIN, Intruder, letters, reference_hashes

ROOT = Path(__file__).parents[3]


class Undone(Exception):
    """Takes a transaction back."""


@contextmanager
def undone() -> Iterator[None]:
    """A transaction of Django's that is taken back at its end."""
    with suppress(Undone), transaction.atomic():
        yield
        raise Undone


def events(chain: str = CHAIN) -> list[AuditEvent]:
    rows = AuditRow.objects.filter(chain__name=chain).order_by("seq")
    return [AuditEvent(row.event, row.record_id, row.sender, row.recipient) for row in rows]


async def engine_connection() -> Connection:
    return await connect(make_conninfo(**connection_parameters()), "test")


# Appending.


def test_rows_are_numbered_and_hashed_as_specified(transactional_db: None, intruder: Intruder) -> None:
    given = letters(6)
    append(CHAIN, given[:1])
    append(CHAIN, given[1:])
    rows = intruder.rows()
    assert [row[0] for row in rows] == list(range(6))
    assert [AuditEvent(*row[1:5]) for row in rows] == given
    assert [row[5] for row in rows] == reference_hashes(given)
    head = AuditHead.objects.get(chain__name=CHAIN)
    assert (head.next_seq, bytes(head.hash).hex()) == (6, rows[-1][5])


@pytest.mark.django_db
def test_rows_belong_to_the_callers_transaction() -> None:
    append(CHAIN, letters(2))
    with undone():
        append(CHAIN, letters(3, first=2))
    assert events() == letters(2)
    append(CHAIN, letters(1, first=9))
    assert [row.seq for row in AuditRow.objects.all()] == [0, 1, 2]


@pytest.mark.django_db
def test_more_rows_than_a_statement_takes_are_appended_in_order() -> None:
    given = letters(MAX_ROWS + 5)
    append(CHAIN, given)
    assert events() == given
    assert AuditRow.objects.get(seq=MAX_ROWS + 4).hash.hex() == reference_hashes(given)[-1]


@pytest.mark.django_db
def test_appending_nothing_makes_no_chain() -> None:
    append(CHAIN, [])
    assert chain_names() == []


@pytest.mark.django_db
def test_an_event_that_cannot_be_stored_does_not_spoil_the_transaction() -> None:
    with pytest.raises(InvalidEvent):
        append(CHAIN, [AuditEvent("send", "a\0b", "", "")])
    append(CHAIN, letters(1))
    assert events() == letters(1)


@pytest.mark.django_db
def test_several_chains_are_appended_to_together_or_not_at_all() -> None:
    append_all({queue_chain("orders"): letters(2), CHAIN: letters(1)})
    assert chain_names() == [CHAIN, "queue:orders"]
    with pytest.raises(InvalidEvent):
        append_all({CHAIN: letters(1), "zzz": [AuditEvent("send", "\0", "", "")]})
    assert (len(events()), get_chain("queue:orders").name) == (1, "queue:orders")
    with pytest.raises(NoSuchChain):
        get_chain("zzz")


@pytest.mark.django_db
def test_a_head_whose_lock_was_not_kept_appends_nothing() -> None:
    append(CHAIN, letters(1))
    with connection.cursor() as cursor:
        cursor.execute(statement("audit_head").decode(), {"chain": CHAIN})
        head = cursor.fetchone()
        append(CHAIN, letters(1, first=1))
        parameters = append_parameters(head, AuditRecord(letters(1, first=2)))
        with pytest.raises(OperationalError, match="0 of 1 rows"), transaction.atomic():
            cursor.execute(statement("audit_append").decode(), parameters)
    assert events() == letters(2)


@pytest.mark.django_db
def test_a_head_that_says_another_seq_than_is_there_appends_nothing() -> None:
    append(CHAIN, letters(1))
    with connection.cursor() as cursor:
        cursor.execute(statement("audit_head").decode(), {"chain": CHAIN})
        chain, seq, last = cursor.fetchone()
        stale = (chain, seq - 1, last)
        with pytest.raises(OperationalError, match="0 of 1 rows"), transaction.atomic():
            cursor.execute(statement("audit_append").decode(), append_parameters(stale, AuditRecord(letters(1))))


def test_a_chain_whose_head_was_taken_away_is_not_appended_to(transactional_db: None, intruder: Intruder) -> None:
    append(CHAIN, letters(1))
    intruder.run("delete from queues_audithead")
    with pytest.raises(HeadNotLocked, match="no head"):
        append(CHAIN, letters(1))


# Many writers.


@pytest.fixture
def writer(database_url: str) -> Iterator[Callable[..., Process]]:
    """Start processes that append; they are stopped at the end."""
    started: list[Process] = []

    def start(*arguments: object) -> Process:
        command = [sys.executable, "-m", "tests.queues.audit.writer", *map(str, arguments)]
        started.append(Process(*command, environment={"DATABASE_URL": database_url}))
        return started[-1]

    yield start
    for process in started:
        process.end()


def assert_no_fork_and_no_gap(expected: dict[str, int]) -> None:
    """The chain verifies, and holds every row of every writer in the order in which each wrote them."""
    outcome = verify(CHAIN)
    assert outcome.ok, outcome.finding
    written = defaultdict(list)
    for event in events():
        written[event.sender].append(event.id)
    assert {name: len(ids) for name, ids in written.items()} == expected
    for name, ids in written.items():
        order = [tuple(map(int, id.removeprefix(f"{name}-").split("-"))) for id in ids]
        assert order == sorted(order), name


def rows_of(batches: int) -> int:
    return sum(1 + n % 7 for n in range(batches))


def test_many_processes_append_without_forks_or_gaps_and_one_that_is_killed_leaves_nothing(
    writer: Callable[..., Process],
) -> None:
    victim = writer(CHAIN, "victim", 30, "hold")
    others = [writer(CHAIN, name, 80) for name in ("one", "two")]
    assert victim.next_line() == "held"
    victim.kill()
    for process in others:
        assert process.wait() == 0
    assert_no_fork_and_no_gap({"victim": rows_of(30), "one": rows_of(80), "two": rows_of(80)})


async def test_engines_and_django_threads_append_to_a_chain_that_is_not_there_yet(transactional_db: None) -> None:
    async def by_engine(name: str) -> None:
        connection = await engine_connection()
        for n in range(40):
            async with connection.transaction():
                record = AuditRecord([AuditEvent("send", f"{name}-{n}-0", name, "")])
                await engine_audit.append_all(connection, {CHAIN: record})
        await connection.close()

    def by_django(name: str) -> None:
        for n in range(40):
            append(CHAIN, [AuditEvent("send", f"{name}-{n}-0", name, "")])
        connections.close_all()

    names = ["a", "b", "c", "d", "e", "f"]
    await asyncio.gather(
        *(by_engine(name) for name in names[:3]), *(asyncio.to_thread(by_django, name) for name in names[3:])
    )

    def look() -> None:
        assert_no_fork_and_no_gap(dict.fromkeys(names, 40))
        connections.close_all()

    await asyncio.to_thread(look)


async def test_transactions_that_append_to_the_same_chains_in_any_order_do_not_deadlock(
    transactional_db: None,
) -> None:
    async def work(chains: list[str]) -> None:
        connection = await engine_connection()
        for n in range(40):
            async with connection.transaction():
                await engine_audit.append_all(connection, {chain: AuditRecord(letters(1, first=n)) for chain in chains})
        await connection.close()

    await asyncio.gather(work(["a", "b", "c"]), work(["c", "b", "a"]), work(["b", "c"]))


def test_threads_that_append_to_the_same_chains_in_any_order_do_not_deadlock(transactional_db: None) -> None:
    def work(chains: list[str]) -> None:
        for n in range(40):
            append_all({chain: letters(1, first=n) for chain in chains})
        connections.close_all()

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, (["a", "b", "c"], ["c", "b", "a"], ["b", "c"])))
    assert [verify(chain).rows for chain in ("a", "b", "c")] == [80, 120, 120]


# The engine's own way.


async def test_the_engine_appends_in_its_open_transaction(transactional_db: None, intruder: Intruder) -> None:
    connection = await engine_connection()
    async with connection.transaction(force_rollback=True):
        await engine_audit.append_all(connection, {CHAIN: AuditRecord(letters(3))})
    async with connection.transaction():
        await engine_audit.append_all(connection, {CHAIN: AuditRecord(letters(2))})
    await connection.close()
    assert [row[5] for row in intruder.rows()] == reference_hashes(letters(2))


async def test_rows_of_many_kinds_lie_in_the_order_of_their_numbers(
    transactional_db: None, intruder: Intruder
) -> None:
    connection = await engine_connection()
    given = [AuditEvent("send", f"m{n}", f"peer {n % 7}", f"peer {n % 3}") for n in range(50)]
    for _ in range(7):  # the statement is prepared by then
        async with connection.transaction():
            await engine_audit.append_all(connection, {CHAIN: AuditRecord(given)})
    await connection.close()
    assert [AuditEvent(*row[1:5]) for row in intruder.rows()] == given * 7
    assert [seq for (seq,) in intruder.run("select seq from queues_audit order by ctid")] == list(range(350))


async def test_the_engine_appends_more_events_than_a_statement_takes_in_order(
    transactional_db: None, intruder: Intruder
) -> None:
    given = letters(2 * MAX_ROWS + 5)
    connection = await engine_connection()
    async with engine_audit.transaction(connection) as transaction:
        await transaction.lock(CHAIN)
        place = await transaction.append(CHAIN, AuditRecord(given))
    assert place is not None
    assert (place.seq, await engine_audit.has(connection, CHAIN, place)) == (len(given) - 1, True)
    await connection.close()
    assert [row[5] for row in intruder.rows()] == reference_hashes(given)


async def test_outside_a_transaction_the_engine_appends_only_while_no_other_does(transactional_db: None) -> None:
    connection = await engine_connection()
    head = await (await connection.execute(statement("audit_head"), {"chain": CHAIN})).fetchone()
    assert head is not None
    await engine_audit.append_all(connection, {CHAIN: AuditRecord(letters(1))})
    with pytest.raises(psycopg.OperationalError, match="0 of 1 rows"):
        await connection.execute(statement("audit_append"), append_parameters(head, AuditRecord(letters(1))))
    await connection.close()


# The journal.


def test_an_event_of_a_long_transaction_does_not_hold_up_the_chain(transactional_db: None) -> None:
    with transaction.atomic():
        journal(CHAIN, [AuditEvent("send", "late", "", "")])
        with psycopg.connect(**connection_parameters() | {"options": "-c lock_timeout=2s"}) as other:
            cursor = other.execute(statement("audit_head"), {"chain": CHAIN})
            parameters = append_parameters(cursor.fetchone() or (), AuditRecord(letters(1)))
            other.execute(statement("audit_append"), parameters)
    assert events() == letters(1)
    assert waiting() == {CHAIN: 1}
    assert seal() == 1
    assert [event.id for event in events()] == ["m0", "late"]
    assert (seal(), waiting()) == (0, {})


def test_events_of_a_transaction_that_is_taken_back_are_never_sealed(transactional_db: None) -> None:
    with undone():
        journal(CHAIN, letters(3))
    assert seal() == 0
    journal(CHAIN, letters(1))
    assert seal() == 1
    assert events() == letters(1)


def test_events_are_sealed_in_the_order_in_which_they_were_noted_each_in_its_chain(transactional_db: None) -> None:
    for n in range(6):
        journal("even" if n % 2 == 0 else "odd", letters(1, first=n))
    assert seal() == 6
    assert [event.id for event in events("even")] == ["m0", "m2", "m4"]
    assert [event.id for event in events("odd")] == ["m1", "m3", "m5"]


def test_events_are_sealed_in_order_wherever_the_table_keeps_them(transactional_db: None) -> None:
    journal(CHAIN, letters(3))
    first = AuditJournalEntry.objects.earliest("id")
    AuditJournalEntry.objects.filter(pk=first.pk).update(recipient="carol")  # its row is now the last one
    with connection.cursor() as cursor:
        for name in ("enable_indexscan", "enable_bitmapscan"):
            cursor.execute("select set_config(%s, 'off', false)", [name])
    assert seal() == 3
    connection.close()  # the settings go with it
    assert [event.id for event in events()] == ["m0", "m1", "m2"]


def test_more_events_than_a_statement_takes_are_sealed_in_order(transactional_db: None) -> None:
    given = letters(2 * MAX_ROWS + 1)
    journal(CHAIN, given)
    assert seal() == len(given)
    assert events() == given
    assert verify(CHAIN).ok


@pytest.mark.django_db
def test_an_event_that_cannot_be_stored_is_refused_when_it_is_noted() -> None:
    with pytest.raises(InvalidEvent):
        journal(CHAIN, [AuditEvent("send", "a\0", "", "")])
    assert not AuditJournalEntry.objects.exists()


def test_sealing_inside_a_transaction_is_refused(transactional_db: None) -> None:
    journal(CHAIN, letters(1))
    with transaction.atomic(), pytest.raises(RuntimeError, match="durable"):
        seal()
    assert waiting() == {CHAIN: 1}


def test_several_that_seal_at_once_move_each_event_once(transactional_db: None) -> None:
    for n in range(300):
        journal(CHAIN, letters(1, first=n))

    def work(_: Any) -> int:
        try:
            return seal()
        finally:
            connections.close_all()

    async def by_engine() -> int:
        connection = await engine_connection()
        try:
            return await engine_audit.seal(connection)
        finally:
            await connection.close()

    with ThreadPoolExecutor(4) as pool:
        moved = list(pool.map(work, range(3)))
        moved.append(asyncio.run(by_engine()))
    assert sum(moved) == 300
    assert events() == letters(300)
    assert verify(CHAIN).ok
    close_old_connections()


async def test_the_engine_seals_what_django_has_noted(transactional_db: None) -> None:
    def note() -> None:
        journal(CHAIN, letters(MAX_ROWS + 1))
        connections.close_all()

    await asyncio.to_thread(note)
    connection = await engine_connection()
    assert await engine_audit.seal(connection) == MAX_ROWS + 1
    assert await engine_audit.seal(connection) == 0
    await connection.close()
