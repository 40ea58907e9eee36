"""A node's row: what it has promised survives, one process runs it, and what it shows is seen."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable, Coroutine
from random import Random
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from channels.db import database_sync_to_async
from psycopg.conninfo import make_conninfo

from hydra.errors import NodeForgotten, NodeNameTaken, StaleWrite, StoreBroken, StoreClosed, UnreadableRow
from hydra.notifications import CommandAction, OperatorCommand
from hydra.operations import send
from hydra.protocol.effects import StoredNode
from hydra.protocol.electorate import Electorate
from hydra.snapshot import Occurrence
from hydra.storage.database import connect, conninfo_from_settings
from hydra.storage.node_row import NodeStore, StoreHandlers
from tests.hydra.protocol.driver import OTHERS, Driven, leader_of_three
from tests.hydra.proxy import proxy_to
from tests.hydra.rows import Opened, end_sessions, look_at, open_store, rows
from tests.tables import lock_waits
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)

Open = Callable[..., Coroutine[Any, Any, Opened]]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is slow to end a lost session does not give it to another process."""
    monkeypatch.setattr("hydra.storage.node_row.LEASE_TIMEOUT", 60.0)


@pytest.fixture
async def opened() -> AsyncIterator[Open]:
    """Opens stores, and closes them at the end."""
    stores: list[Opened] = []

    async def make(name: str = "alpha", **options: Any) -> Opened:
        stores.append(await open_store(name, **options))
        return stores[-1]

    yield make
    for each in stores:
        await each.store.close()


def promised(store: NodeStore, term: int, pledge: int | None = None, *voters: str) -> StoredNode:
    electorate = Electorate(term, 1, frozenset({store.stored.voter, *voters})) if voters else store.stored.electorate
    return StoredNode(store.stored.voter, term, pledge, electorate)


# The row.


async def test_a_node_that_was_never_started_has_a_row_with_a_key_when_the_store_is_open(opened: Open) -> None:
    alpha = (await opened("alpha")).store
    assert alpha.lease.new
    assert alpha.lease.position is None
    assert alpha.stored == StoredNode(f"{Random('alpha').getrandbits(64):016x}")
    [row] = rows("select name, voter, term, pledge, electorate, host, pid from hydra_node")
    assert (row["name"], row["voter"], row["term"], row["pledge"]) == ("alpha", alpha.stored.voter, 0, None)
    assert row["pid"] == os.getpid()


async def test_two_nodes_have_different_keys_and_run_side_by_side(opened: Open) -> None:
    alpha, beta = (await opened("alpha")).store, (await opened("beta")).store
    assert alpha.stored.voter != beta.stored.voter


async def test_written_state_is_there_after_a_restart(opened: Open) -> None:
    alpha = (await opened()).store
    await alpha.write(stored := promised(alpha, 4, 2**32 - 1, OTHERS[0]))
    await alpha.close()
    rows("update hydra_node set position_term = 3, position_idx = 17")
    again = (await opened(rng=Random(1))).store
    assert again.stored == stored == alpha.stored
    assert not again.lease.new
    assert again.lease.position == (3, 17)


async def test_a_row_that_no_node_has_written_is_refused(opened: Open) -> None:
    await (await opened()).store.close()
    rows("update hydra_node set electorate = '1.2:nonsense'")
    with pytest.raises(UnreadableRow, match="alpha"):
        await opened()


async def test_the_database_that_is_away_at_the_start_is_said() -> None:
    with pytest.raises(psycopg.OperationalError):
        await open_store(conninfo="host=127.0.0.1 port=1 dbname=none")


# Promises.


@pytest.mark.parametrize(
    ("later", "words"),
    [((3, None), "go back to 3"), ((4, 12), "pledged to 11"), ((4, None), "pledged to 11")],
)
async def test_a_promise_is_not_taken_back(opened: Open, later: tuple[int, int | None], words: str) -> None:
    alpha = await opened()
    await alpha.store.write(promised(alpha.store, 4, 11))
    with pytest.raises(StaleWrite, match=words):
        await alpha.store.write(promised(alpha.store, *later))
    assert [type(error) for error in alpha.failed] == [StaleWrite]
    assert rows("select term, pledge from hydra_node") == [{"term": 4, "pledge": 11}]
    with pytest.raises(StaleWrite):
        await alpha.store.write(promised(alpha.store, 5))


@pytest.mark.parametrize(
    ("change", "words"),
    [("term = 3", "go back to 3"), ("pledge = 12", "pledge to 12"), ("pledge = null", "pledge to none"),
     ("voter = '00000000000000bb'", "keeps its lasting key")],
)  # fmt: skip
async def test_the_database_itself_refuses_to_take_a_promise_back(opened: Open, change: str, words: str) -> None:
    alpha = await opened()
    await alpha.store.write(promised(alpha.store, 4, 11))
    with pytest.raises(psycopg.errors.CheckViolation, match=words) as refusal:
        rows(f"update hydra_node set {change}")
    assert refusal.value.diag.constraint_name == "hydra_node_promises"


async def test_a_row_that_another_process_has_moved_on_is_not_moved_back(opened: Open) -> None:
    alpha = await opened()
    rows("update hydra_node set term = 9")
    with pytest.raises(StaleWrite, match="was to go back to 4"):
        await alpha.store.write(promised(alpha.store, 4))
    assert len(alpha.failed) == 1


async def test_another_pledge_than_the_one_on_record_is_refused_even_if_the_row_has_forgotten_it(opened: Open) -> None:
    alpha = await opened()
    voter = alpha.store.stored.voter
    rows("insert into hydra_vote (voter, name, term, pledge) values (%s, 'alpha', 4, 11)", voter)
    with pytest.raises(StaleWrite, match="hydra_vote_once"):
        await alpha.store.write(promised(alpha.store, 4, 12))
    assert rows("select term from hydra_node") == [{"term": 0}]


async def test_writes_that_wait_are_made_as_one_and_every_pledge_is_on_record(opened: Open) -> None:
    alpha = (await opened()).store
    writes = [promised(alpha, 1, 11), promised(alpha, 2), promised(alpha, 2, 12), promised(alpha, 3)]
    await asyncio.gather(*map(alpha.write, writes))
    assert rows("select term, pledge from hydra_node") == [{"term": 3, "pledge": None}]
    votes = rows("select name, voter, term, pledge from hydra_vote order by term")
    assert [(vote["term"], vote["pledge"]) for vote in votes] == [(1, 11), (2, 12)]
    assert {(vote["name"], vote["voter"]) for vote in votes} == {("alpha", alpha.stored.voter)}


async def test_writes_made_as_one_do_not_hide_a_second_pledge(opened: Open) -> None:
    alpha = (await opened()).store
    writes = [promised(alpha, 1, 11), promised(alpha, 1, 12), promised(alpha, 2)]
    results = await asyncio.gather(*map(alpha.write, writes), return_exceptions=True)
    assert {type(result) for result in results} == {StaleWrite}
    assert rows("select term from hydra_node") == [{"term": 0}]


@pytest.mark.parametrize("change", ["update hydra_vote set pledge = 12", "delete from hydra_vote"])
async def test_votes_on_record_stand(opened: Open, change: str) -> None:
    alpha = (await opened()).store
    await alpha.write(promised(alpha, 4, 11))
    with pytest.raises(psycopg.errors.CheckViolation, match="votes stand"):
        rows(change)


async def test_a_write_is_on_disk_when_it_is_answered_whatever_the_server_prefers() -> None:
    options = "-c synchronous_commit=off -c default_transaction_read_only=on"
    settings = make_conninfo(conninfo_from_settings(), options=options)
    async with await connect(settings, "test") as connection:
        assert await (await connection.execute("show synchronous_commit")).fetchone() == ("on",)
        assert await (await connection.execute("show transaction_read_only")).fetchone() == ("off",)


# One process.


@contextlib.asynccontextmanager
async def another_process(name: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Another process that runs a node, and has written its first term."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.hydra.storeprocess", conninfo_from_settings(), name, stdout=PIPE
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"1\n"
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def test_two_processes_do_not_run_one_node(opened: Open) -> None:
    async with another_process("alpha") as other:
        with pytest.raises(NodeNameTaken, match=f"'alpha': {other.pid} on "):
            await opened("alpha")
        await opened("beta")


async def test_a_process_does_not_run_one_node_twice(opened: Open) -> None:
    alpha = (await opened()).store
    with pytest.raises(NodeNameTaken):
        await opened()
    await alpha.write(promised(alpha, 1))


async def test_two_that_start_a_node_for_the_first_time_at_once_do_not_both_run_it(opened: Open) -> None:
    results = await asyncio.gather(opened(), opened(rng=Random(1)), return_exceptions=True)
    assert sorted(type(result).__name__ for result in results) == ["NodeNameTaken", "Opened"]
    assert [each.store.lease.new for each in results if isinstance(each, Opened)] == [True]


async def test_a_process_that_is_killed_forgets_nothing_that_was_answered(opened: Open) -> None:
    async with another_process("alpha") as other:
        assert other.stdout is not None
        lines = [await other.stdout.readline() for _ in range(20)]
        other.kill()
        lines += (await other.stdout.read()).splitlines()
        answered = int(lines[-1])
        alpha = (await opened(timeout=10.0)).store
    assert alpha.stored.term in (answered, answered + 1)
    assert alpha.stored.pledge == alpha.stored.term + 100
    votes = [vote["term"] for vote in rows("select term from hydra_vote order by term")]
    assert votes == list(range(1, alpha.stored.term + 1))


async def test_a_node_that_is_just_ending_is_waited_for(opened: Open) -> None:
    alpha = (await opened()).store
    next = asyncio.create_task(opened(timeout=10.0))
    await alpha.write(promised(alpha, 1))
    await alpha.close()
    assert (await next).store.stored.term == 1


# The database goes away.


@pytest.mark.parametrize("purpose", ["keeper", "writer"])
async def test_a_session_that_ends_is_told_at_once_and_the_node_comes_back_by_itself(
    opened: Open, purpose: str
) -> None:
    name = f"loses its {purpose}"  # the sessions of another test's node may still be ending
    alpha = await opened(name)
    run = alpha.store.lease.run
    assert end_sessions(name, purpose) == 1
    await until(lambda: alpha.lost, "the node is told")
    await until(lambda: alpha.back, "it is told again")
    assert (len(alpha.lost), alpha.back, alpha.failed) == (1, 1, [])
    with pytest.raises(NodeNameTaken):
        await opened(name)
    await alpha.store.write(promised(alpha.store, 1))
    assert alpha.store.lease.run == run


async def test_writes_wait_until_the_database_is_there_again_and_nothing_else_does(opened: Open) -> None:
    async with proxy_to(conninfo_from_settings()) as (proxy, conninfo):
        alpha = await opened(conninfo=conninfo)
        proxy.cut()
        await until(lambda: alpha.lost, "the node is told")
        assert alpha.store.lost
        write = asyncio.create_task(alpha.store.write(promised(alpha.store, 1, 11)))
        alpha.store.status.happened("test", "while the database was away")
        alpha.store.status.publish(look_at(Driven()))
        await asyncio.wait({write}, timeout=0.3)
        assert not write.done()
        assert rows("select term from hydra_node") == [{"term": 0}]
        await proxy.start()
        await write
        assert alpha.back == 1
        await until(lambda: rows("select from hydra_event where kind = 'test'"), "the event is there")
        events = rows("select kind from hydra_event where kind like 'database%%' order by id")
        assert [event["kind"] for event in events] == ["database lost", "database back"]


async def test_a_write_whose_answer_was_lost_is_known_when_the_node_starts_again(opened: Open) -> None:
    async with proxy_to(conninfo_from_settings()) as (proxy, conninfo):
        alpha = await opened(conninfo=conninfo)
        proxy.cut()
        await until(lambda: alpha.lost, "the node is told")
        rows("update hydra_node set term = 7, pledge = 11")  # as a commit does that is not heard of
        await proxy.start()
        await until(lambda: alpha.back, "the node comes back")
        assert await alpha.store.settled() == promised(alpha.store, 7, 11)
        await alpha.store.write(promised(alpha.store, 7, 11))


async def test_a_write_without_a_waiter_is_not_made_later(opened: Open) -> None:
    async with proxy_to(conninfo_from_settings()) as (proxy, conninfo):
        alpha = await opened(conninfo=conninfo)
        proxy.cut()
        await until(lambda: alpha.lost, "the node is told")
        write = asyncio.create_task(alpha.store.write(promised(alpha.store, 4, 11)))
        await asyncio.sleep(0)
        write.cancel()
        await proxy.start()
        assert (await alpha.store.settled()).term == 0
        await alpha.store.write(promised(alpha.store, 4, 12))
    assert rows("select term, pledge from hydra_node") == [{"term": 4, "pledge": 12}]


async def test_a_node_that_starts_again_waits_for_a_write_that_is_under_way(opened: Open) -> None:
    alpha = (await opened()).store
    with contextlib.closing(psycopg.connect(conninfo_from_settings())) as other:
        other.execute("select from hydra_node for update")
        write = asyncio.create_task(alpha.write(promised(alpha, 4, 11)))
        await until(lambda: rows(lock_waits("%%writer")), "the write is under way")
        write.cancel()
        settled = asyncio.create_task(alpha.settled())
        await asyncio.wait({settled}, timeout=0.1)
        assert not settled.done()
        other.rollback()
        assert await settled == promised(alpha, 4, 11)


async def test_a_server_that_does_not_answer_counts_as_lost(opened: Open, monkeypatch: Any) -> None:
    monkeypatch.setattr("hydra.storage.node_row.LOOK", 0.05)
    monkeypatch.setattr("hydra.storage.node_row.SILENCE", 0.1)
    async with proxy_to(conninfo_from_settings()) as (proxy, conninfo):
        alpha = await opened(conninfo=conninfo)
        proxy.freeze()
        await until(lambda: alpha.lost, "the node is told")
        assert "has not answered" in alpha.lost[0]
        proxy.thaw()
        await until(lambda: alpha.back, "it answers after all")
        await alpha.store.write(promised(alpha.store, 1))
        assert alpha.failed == []


async def test_a_server_behind_a_black_hole_counts_as_lost_when_the_lease_leaves_no_more_time(opened: Open) -> None:
    async with proxy_to(conninfo_from_settings()) as (proxy, conninfo):
        alpha = await opened(conninfo=conninfo, answer=3.0)
        proxy.freeze()
        await until(lambda: alpha.lost, "the node is told")
        assert alpha.lost[0] == "the database has not answered for 2.5 s"
        proxy.thaw()
        await until(lambda: alpha.back, "it answers after all")


async def test_a_session_that_only_the_server_takes_for_living_is_ended(opened: Open) -> None:
    """As when the way is cut without a word: the server keeps the lock of a client that is gone."""
    async with proxy_to(conninfo_from_settings()) as (proxy, conninfo):
        alpha = await opened(conninfo=conninfo)
        proxy.forget()
        await until(lambda: alpha.back, "the node comes back")
        assert len(alpha.lost) == 1
        await alpha.store.write(promised(alpha.store, 1))


async def test_a_process_that_lost_its_node_to_another_does_not_resume(opened: Open) -> None:
    async with proxy_to(conninfo_from_settings()) as (proxy, conninfo):
        alpha = await opened(conninfo=conninfo)
        proxy.cut()
        await until(lambda: alpha.lost, "the node is told")
        write = asyncio.create_task(alpha.store.write(promised(alpha.store, 1)))
        other = await opened(timeout=10.0)
        await other.store.write(promised(other.store, 5, 12))
        await other.store.close()
        await proxy.start()
        with pytest.raises(NodeNameTaken, match="has run the node 'alpha' meanwhile"):
            await write
    assert [type(error) for error in alpha.failed] == [NodeNameTaken]
    assert (alpha.back, alpha.store.lost) == (0, True)
    assert rows("select term, pledge from hydra_node") == [{"term": 5, "pledge": 12}]


async def test_a_process_whose_place_was_taken_writes_nothing_more(opened: Open) -> None:
    """Even if it does not know that its lock is gone."""
    alpha = await opened()
    rows("update hydra_node set run = gen_random_uuid(), host = 'elsewhere'")
    with pytest.raises(NodeNameTaken, match="on elsewhere"):
        await alpha.store.write(promised(alpha.store, 1, 11))
    assert rows("select term from hydra_node") == [{"term": 0}]
    assert rows("select from hydra_vote") == []


async def test_a_node_that_was_forgotten_does_not_go_on(opened: Open) -> None:
    alpha = await opened()
    rows("delete from hydra_node")
    with pytest.raises(NodeForgotten):
        await alpha.store.write(promised(alpha.store, 1))
    assert [type(error) for error in alpha.failed] == [NodeForgotten]


async def test_a_callback_that_fails_ends_the_store_and_all_waits(caplog: Any) -> None:
    beta = Opened()

    def fail(reason: str) -> None:
        raise ZeroDivisionError(reason)

    async with proxy_to(conninfo_from_settings()) as (proxy, conninfo):
        handlers = StoreHandlers(on_lost=fail, on_back=print, on_failed=beta.failed.append, on_command=print)
        beta.store = await NodeStore.open("beta", conninfo, handlers)
        proxy.cut()
        await until(lambda: beta.failed, "the store has ended")
        with pytest.raises(StoreBroken, match="ZeroDivisionError"):
            await beta.store.write(promised(beta.store, 1))
        await beta.store.close()
    assert "the store of the node beta has failed" in caplog.text


async def test_writes_that_wait_when_the_store_is_closed_are_refused(opened: Open) -> None:
    async with proxy_to(conninfo_from_settings()) as (proxy, conninfo):
        alpha = await opened(conninfo=conninfo)
        proxy.cut()
        await until(lambda: alpha.lost, "the node is told")
        write = asyncio.create_task(alpha.store.write(promised(alpha.store, 1)))
        await asyncio.sleep(0)
        await alpha.store.close()
        with pytest.raises(StoreClosed):
            await write
    with pytest.raises(StoreClosed):
        await alpha.store.write(promised(alpha.store, 2))
    assert alpha.failed == []


# The operators' view.


async def test_the_tables_show_a_leader_as_it_is(opened: Open) -> None:
    alpha, node = (await opened()).store, leader_of_three()
    before = rows("select clock_timestamp() as now")[0]["now"]
    alpha.status.listening(["127.0.0.1:6174"])
    alpha.status.publish(look_at(node))
    await until(lambda: rows("select from hydra_node where role = 'leading'"), "the status is written")
    # A pause of either process may be part of what the store takes for the difference of its clock and the database's.
    took = (rows("select clock_timestamp() as now")[0]["now"] - before).total_seconds()
    [row] = rows("select * from hydra_node")
    assert (row["current_id"], row["leader"], row["leader_name"]) == (node.id, node.id, "alpha")
    assert (row["irc"], row["listen"]) == ("on", ["127.0.0.1:6174"])
    assert 7.0 - took < (row["lease_until"] - before).total_seconds() < 9.0 + took
    links = rows("select number, origin, target, peer, peer_tag, state, extended from hydra_link order by number")
    assert [tuple(link.values()) for link in links] == [
        (1, "10.0.0.1", "", 11, "n1", "joined", True), (2, "10.0.0.2", "", 12, "n2", "joined", True),
    ]  # fmt: skip
    members = rows("select member, voter, tag, hops, via, voting from hydra_member order by member")
    assert [tuple(member.values()) for member in members] == [
        (11, OTHERS[0], "n1", 1, 1, True), (12, OTHERS[1], "n2", 1, 2, True),
    ]  # fmt: skip
    [age] = rows("select extract(epoch from %s - min(answered_at))::float8 as age from hydra_member", before)
    assert -1.0 - took < age["age"] < 1.0 + took


async def test_an_ended_link_is_no_longer_shown(opened: Open) -> None:
    alpha, node = (await opened()).store, leader_of_three()
    alpha.status.publish(look_at(node))
    await until(lambda: rows("select from hydra_link"), "the status is written")
    node.lose(1)
    node.hear(2, "DROP 11 gone")
    alpha.status.publish(look_at(node))
    await until(lambda: len(rows("select from hydra_link")) == 1, "the link has gone")
    assert [row["member"] for row in rows("select member from hydra_member")] == [12]
    await alpha.close()
    again = (await opened()).store
    assert rows("select from hydra_link union all select from hydra_member") == []
    assert rows("select role, irc, leader from hydra_node") == [{"role": "outside", "irc": "off", "leader": None}]
    assert again.stored.voter == alpha.stored.voter


async def test_rows_that_are_as_they_were_are_not_written_again(opened: Open, monkeypatch: Any) -> None:
    monkeypatch.setattr("hydra.storage.status_writer.INTERVAL", 0.01)
    monkeypatch.setattr("hydra.storage.status_writer.DRIFT", 3600.0)  # the driven node's clock stands still meanwhile
    alpha, node = (await opened()).store, leader_of_three()
    alpha.status.publish(look_at(node))
    await until(lambda: rows("select from hydra_member"), "the status is written")
    versions = "select xmin::text from hydra_link union all select xmin::text from hydra_member where member = 12"
    before = rows(versions)
    node.wait(0.1)
    node.hear(1, "DROP 11 gone")
    alpha.status.publish(look_at(node))
    await until(lambda: len(rows("select from hydra_member")) == 1, "the status is written again")
    assert rows(versions) == [before[1], before[2]]


async def test_status_is_written_once_an_interval_unless_something_that_matters_has_changed(
    opened: Open, monkeypatch: Any
) -> None:
    monkeypatch.setattr("hydra.storage.status_writer.INTERVAL", 3600.0)
    monkeypatch.setattr("hydra.storage.status_writer.PRUNING", 3600.0)
    alpha, node = (await opened()).store, leader_of_three()
    for _ in range(50):
        alpha.status.publish(look_at(node))
        await asyncio.sleep(0.001)
    seen = "select seen_at, role from hydra_node"
    await until(lambda: rows(seen)[0]["role"] == "leading", "the status is written")
    first = rows(seen)[0]["seen_at"]
    alpha.status.publish(look_at(node))
    for term in (1, 2):  # between two writes the store looks what else there is to write
        await alpha.write(promised(alpha, term))
    assert rows(seen)[0]["seen_at"] == first
    node.wait(8.1)
    alpha.status.publish(look_at(node))
    await until(lambda: rows(seen)[0]["role"] == "waiting", "the status is written at once")


async def test_events_are_recorded_in_order_with_their_term(opened: Open) -> None:
    alpha, node = (await opened()).store, leader_of_three()
    alpha.status.publish(look_at(node))
    alpha.status.happened("link closed", "10.0.0.7: a \0 and \udcff more")
    alpha.status.note([Occurrence("line refused", 3, "too long")])
    await until(lambda: rows("select from hydra_event where kind = 'line refused'"), "the events are written")
    events = [(row["kind"], row["term"], row["text"]) for row in rows("select * from hydra_event order by id")]
    assert events == [
        ("role", 4, "leads term 4"),
        ("joined", 4, "n1 (11) is a node of the network"),
        ("joined", 4, "n2 (12) is a node of the network"),
        ("electorate", 4, "4.5: alpha, n1, n2"),
        ("link closed", 4, "10.0.0.7: a \N{REPLACEMENT CHARACTER} and \N{REPLACEMENT CHARACTER} more"),
        ("line refused", 3, "too long"),
    ]


async def test_a_flood_of_events_loses_the_oldest_and_says_so(opened: Open, monkeypatch: Any) -> None:
    monkeypatch.setattr("hydra.storage.status_writer.MAX_WAITING", 3)
    alpha = (await opened()).store
    alpha.status.note([Occurrence("test", 1, str(n)) for n in range(10)])
    await until(lambda: rows("select from hydra_event where text = '9'"), "the events are written")
    texts = [row["text"] for row in rows("select text from hydra_event order by id")]
    assert texts == ["7 more before", "7", "8", "9"]


async def test_old_events_and_all_but_the_newest_are_removed(opened: Open, monkeypatch: Any) -> None:
    alpha = (await opened()).store
    node = alpha.lease.id
    rows(
        "insert into hydra_event (node_id, at, kind, term, text)"
        " select %s, now() - make_interval(days => 40 - n), 'test', 1, n::text from generate_series(1, 40) n",
        node,
    )
    await alpha.close()
    monkeypatch.setattr("hydra.storage.status_writer.EVENTS_KEPT", 5)
    await opened()
    await until(lambda: len(rows("select from hydra_event")) == 5, "five are left")
    monkeypatch.setattr("hydra.storage.status_writer.DAYS_KEPT", 3)
    await opened("beta")
    assert {row["text"] for row in rows("select text from hydra_event")} == {"36", "37", "38", "39", "40"}


# Commands.


async def test_a_command_reaches_the_process_that_it_is_for(opened: Open) -> None:
    alpha, beta = await opened("alpha"), await opened("beta")
    command = OperatorCommand(
        node="alpha", run=alpha.store.lease.run, action=CommandAction.DROP, number=2**32 - 1, by="anna"
    )
    await database_sync_to_async(send)(command)
    await until(lambda: alpha.commands, "the command is there")
    assert alpha.commands == [command]
    assert beta.commands == []
    await until(lambda: rows("select from hydra_event where kind = 'operator'"), "the command is noted")


async def test_a_command_for_a_process_that_has_ended_means_nothing_to_the_next(opened: Open) -> None:
    alpha = await opened()
    old = OperatorCommand(node="alpha", run=uuid4(), action=CommandAction.RESIGN, by="anna")
    new = OperatorCommand(node="alpha", run=alpha.store.lease.run, action=CommandAction.RESIGN, by="anna")
    for command in (old, new):
        await database_sync_to_async(send)(command)
    await until(lambda: alpha.commands, "the command is there")
    assert alpha.commands == [new]


async def test_nonsense_on_the_channel_is_logged_once_a_minute_and_harms_nothing(opened: Open, caplog: Any) -> None:
    alpha = await opened()
    for payload in ("", "{", "[]", "7", '{"action": "explode"}', '{"action": "drop", "node": 7}'):
        rows("select pg_notify('hydra_control', %s)", payload)
    await database_sync_to_async(send)(
        OperatorCommand(node="alpha", run=alpha.store.lease.run, action=CommandAction.RESIGN, by="anna")
    )
    await until(lambda: alpha.commands, "the command is there")
    [told] = [record.getMessage() for record in caplog.records if "no valid command" in record.getMessage()]
    assert told.startswith("1 notification(s) are no valid command, the last: ")
    assert alpha.lost == []
