"""The plan of every statement that touches messages: by index, whatever the table looked like when it was made."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest
from django.db import connection
from psycopg import sql

from queues.engine import statements
from queues.engine.api import options_from_settings
from queues.engine.database import session_settings
from queues.models import State
from tests.queues.engine.conftest import Store
from tests.queues.engine.named import STATEMENTS

#: Statements that never touch the hot table, and those that may read all of it.
ELSEWHERE = {
    "add_interest", "admit", "audit_append", "audit_has", "audit_head", "audit_take", "audit_waiting", "dead_nodes",
    "drop_idle_subscriptions", "drop_instructions", "drop_interest", "drop_old_log_lines", "drop_partitions",
    "end_silent", "idle_subscription_ids", "instruct", "make_partitions",
    "ensure_queue", "fold_dead_letters", "fold_routes", "fold_tallies", "history", "move_ids", "move_tags",
    "note_history",
    "end_frozen", "end_sessions", "key", "key_named", "key_names", "keys", "policies", "queue_id", "register_node",
    "resolve", "served_elsewhere", "waits_for",
    "subscribe", "count_subscriptions", "subscription", "topology_changes",
    "take_instructions", "take_tags", "tallied_queues", "tally_routes", "touch_subscriptions", "unseen",
    "unseen_of_many", "warn_idle_subscriptions", "forget_node",
    "write_connections", "write_workers",
    "close_mailboxes", "connected_names", "forget_letters", "hold_mailboxes", "leave_mailboxes", "note_key_uses",
    "see_letters", "settle_segments", "take_mailboxes", "unpack_late", "unpack_node", "unpack_segments",
    "unsee_letters", "rotate_segments", "rotate_tallies", "settle_single", "slot_bytes", "slot_segments", "unpack_slot",
    "active_consumers", "join_lines", "leave_lines", "node_segments", "release_segments", "unpack_ready",
}  # fmt: skip
#: Those that read segments, but for these of a node, which has an index.
OF_SEGMENTS = {
    "are_stored", "claim", "claim_alone", "first_ready", "look_below", "publish", "publish_detailed", "publish_leased",
    "publish_one", "publish_segment", "settle_segments", "settle_single", "unpack_late",
}  # fmt: skip
READS_ALL = {"leased_ids", "oldest_ids", "reap_leases"}
#: Those that must follow the order of one index, or of several: another would walk over what is leased or other
#: queues'.
ORDERED = {
    "claim": "message_ready", "claim_alone": "message_ready", "claim_dead": "message_dead",
    "publish_segment": "message_ready",
    "publish": "message_ready", "publish_one": "message_ready", "publish_leased": "message_ready",
    "publish_detailed": "message_ready",
    "look_below": "message_ready", "claim_letters": "message_ready", "store_letters": "message_ready message_key",
    "find_letters": "message_key", "first_ready": "message_ready",
}  # fmt: skip
#: All of the hot table's.
INDEXES = (
    "queues_message_pkey", "message_ready", "message_dead", "message_delayed", "message_due", "message_expiry",
    "message_key", "message_origin", "message_tag",
)  # fmt: skip
#: Those that run on the connection that looks for what is due.
DELAYS = {"due_ids", "next_due", "promote_due"}

PARAMETERS: dict[str, Any] = {
    "since": "2026-01-01",
    "version": 1, "node": 1, "producer": None, "queues": "{1}", "wanted": "{t}", "lows": "{0}", "width": 1, "size": 2,
    "max_attempts": None, "bodies": [b"a", b"b"], "keys": [None, None], "headers": [None, None], "delays": "{0,0}",
    "ttls": "{0,0}", "attempts": "{1,1}", "queue": 1, "low": 0, "limit": 100, "count": 10, "ids": "{1,2}",
    "delivered": "{1,1}", "consumer": None, "tags": "{1,2}", "errors": [None, None], "target": 2,
    "outcome": 2, "key": "k", "limited": False, "highs": "{100}", "content": None,
    "priorities": "{0,0}", "intervals": [None, None], "contents": [None, None], "dues": [None, None],
    "results": [None, None], "connection": 1, "most": "{10}", "mailboxes": "{1}", "connections": "{1}",
    "peers": "{a}", "careful": True, "senders": "{0,0}", "recipients": "{0,0}", "starts": "{1,2}", "payloads": b"ab",
    "producers": "{1,1}",
    "broadcasts": True, "locals": "{1}", "local_connections": "{1}", "lasts": "{1}", "byte_rooms": "{1}",
    "consumers": "{1,1}",
    "keep": 1, "keeps": None, "job": None, "jobs": "{f,f}", "archive": True, "whole": False, "kind": "queue",
    "name": "q", "exact": True, "audited": False, "by": "", "how": 0, "error": "", "skip": "{}", "groups": "{0}",
    "kinds": ["queue"], "names": [b"many-1"], "ranks": "{0}", "sizes": "{2}", "places": "{0,1}", "of_groups": "{0,0}",
    "most_packed": 0, "overhead": 0, "waiting": True, "slot": 1, "slots": "{1}", "sinces": [0.0, 0.0],
    "untils": [0.0, 0.0],
}  # fmt: skip

SETTLED_SEGMENTS: dict[str, Any] = {
    "firsts": "{1,2}", "lows": "{0,0}", "highs": "{0,0}", "consumers": "{1,1}", "delivered": "{1,1}", "jobs": "{f,f}",
    "kept": "{t,t}", "whole": "{1}", "parts": "{2}", "slot": 1,
}  # fmt: skip

pytestmark = pytest.mark.django_db  # makes the test database; the plans are made on a connection of their own

INDEXED = sorted(set(STATEMENTS) - ELSEWHERE - READS_ALL)


@pytest.fixture(scope="module")
def planner(django_db_setup: None, django_db_blocker: Any) -> Any:
    """A session as the engine has it."""
    with django_db_blocker.unblock():
        connection.ensure_connection()
        conninfo = options_from_settings("test").conninfo
    with psycopg.connect(conninfo, autocommit=True) as db:
        yield db


def explain(db: psycopg.Connection[Any], name: str, table: str = "queues_message") -> list[dict[str, Any]]:
    """The nodes of a statement's plan that read or write a table, by default the hot one."""
    statement = statements.statement(name)
    given = {key: value for key, value in PARAMETERS.items() if b"%%(%s)" % key.encode() in statement}
    if name == "publish_one":
        given["wanted"] = True
    if name == "settle_segments":
        given = SETTLED_SEGMENTS
    db.execute("reset all")
    for setting, value in session_settings("delays" if name in DELAYS else "requests").items():
        db.execute("select set_config(%s, %s, false)", (setting, value))
    row = db.execute(b"explain (format json) " + statement, given).fetchone()
    assert row is not None
    plan = row[0] if isinstance(row[0], list) else json.loads(row[0])
    found: list[dict[str, Any]] = []

    def walk(node: dict[str, Any]) -> None:
        if node.get("Relation Name") in (table, f"{table}_kept", f"{table}_1") and "Scan" in node["Node Type"]:
            found.append(node)
        if node.get("Node Type") == "Bitmap Index Scan":
            found.append(node)
        for child in node.get("Plans", ()):
            walk(child)

    walk(plan[0]["Plan"])
    return found


def assert_indexed(name: str, nodes: list[dict[str, Any]]) -> None:
    if name in ORDERED:
        assert {*ORDERED[name].split()} <= {node.get("Index Name") for node in nodes}, (name, nodes)
    for node in nodes:
        kind = node["Node Type"]
        assert kind != "Seq Scan", (name, node)
        if name in ORDERED:
            assert node.get("Index Name") in (*ORDERED[name].split(), None), (name, node)
        if kind in ("Index Scan", "Index Only Scan", "Bitmap Index Scan"):
            bounded = "Index Cond" in node or node["Index Name"] in ("message_due", "message_expiry")
            assert bounded, (name, node)


@pytest.mark.parametrize("name", INDEXED)
def test_no_statement_walks_the_messages_when_planned_on_an_empty_table(planner: Any, name: str) -> None:
    planner.execute("vacuum queues_message")
    assert_indexed(name, explain(planner, name))


@pytest.mark.parametrize("name", INDEXED)
def test_no_statement_walks_the_messages_when_planned_on_a_large_table(planner: Any, name: str) -> None:
    # A table is large to the planner by its statistics and its pages; both are here, and nothing is committed.
    with planner.transaction(force_rollback=True):
        planner.execute(
            "insert into queues_message (id, queue_id, state, payload) "
            "select n, n % 10, 0, 'x' from generate_series(1, 20000) n"
        )
        planner.execute("analyze queues_message")
        assert_indexed(name, explain(planner, name))


@pytest.fixture
def emptied(planner: Any) -> Any:
    """The table empty after a large backlog in every state, its indexes not."""
    for state in (State.READY, State.DEAD, State.DELAYED):
        with planner.transaction(force_rollback=True):
            planner.execute(
                "insert into queues_message (id, queue_id, state, payload, key, due_at, expires_at, origin_id, tag) "
                "select n, n %% 10, %s, 'x', 'k' || n, now() + n * '1s'::interval, now() + n * '1s'::interval, n, n "
                "from generate_series(1, 20000) n",
                (int(state),),
            )
    planner.execute("vacuum (index_cleanup off) queues_message")
    yield planner
    planner.execute("vacuum queues_message")
    planner.execute("reindex table queues_message")


@pytest.mark.parametrize("swollen", INDEXES)
def test_no_statement_walks_the_messages_when_a_gone_backlog_has_left_the_right_index_the_costlier_one(
    emptied: Any, swollen: str
) -> None:
    for index in INDEXES:
        if index != swollen:
            emptied.execute(sql.SQL("reindex index {}").format(sql.Identifier(index)))
    for name in INDEXED:
        assert_indexed(name, explain(emptied, name))


@pytest.mark.parametrize("name", ["claim", "claim_alone", "claim_dead"])
def test_a_claim_updates_the_rows_it_has_found_by_their_place(planner: Any, name: str) -> None:
    kinds = [node["Node Type"] for node in explain(planner, name)]
    assert kinds.count("Tid Scan") == 1
    assert set(kinds) <= {"Index Scan", "Index Only Scan", "Tid Scan"}


@pytest.mark.parametrize(("name", "table"), [("resolve", "queues_queue"), ("queue_id", "queues_queue")])
def test_among_many_queues_one_is_found_by_an_index(planner: Any, name: str, table: str) -> None:
    with planner.transaction(force_rollback=True):
        planner.execute(
            "insert into queues_queue (name, uuid, max_attempts, retry_backoff, ack_timeout) "
            "select 'many-' || n, gen_random_uuid(), 5, '1 s', '60 s' from generate_series(1, 20000) n"
        )
        planner.execute("analyze queues_queue")
        nodes = explain(planner, name, table)
    assert [node["Node Type"] for node in nodes] == ["Index Scan"]


@pytest.mark.parametrize("name", sorted(OF_SEGMENTS))
def test_no_statement_walks_the_segments(planner: Any, name: str) -> None:
    planner.execute("vacuum queues_segment, queues_segmentsettlement")
    assert_bounded(name, explain(planner, name, "queues_segment"))
    with planner.transaction(force_rollback=True):
        planner.execute(
            "insert into queues_segment (slot, first, queue_id, node_id, count, bodies) "
            "select n % 2, n, n % 10, case when n % 2 = 1 then 1 else nullif(n % 3, 0) end, 1, '{x}'"
            " from generate_series(1, 40000) n"
        )
        planner.execute(
            "insert into queues_segmentsettlement"
            " select n, 0, 0, null, null, null, true, n % 2 from generate_series(1, 40000) n"
        )
        planner.execute("analyze queues_segment, queues_segmentsettlement")
        assert_bounded(name, explain(planner, name, "queues_segment"))
        for node in explain(planner, name, "queues_segmentsettlement"):
            assert "Index Cond" in node, (name, node)


def assert_bounded(name: str, nodes: list[dict[str, Any]]) -> None:
    assert nodes, name
    for node in nodes:
        assert node["Node Type"] in ("Index Scan", "Index Only Scan"), (name, node)
        assert "Index Cond" in node, (name, node)


def test_every_index_of_the_messages_is_named_here(planner: Any) -> None:
    rows = planner.execute("select indexname from pg_indexes where tablename = 'queues_message'").fetchall()
    assert {name for (name,) in rows} == set(INDEXES)


def test_every_statement_is_named_here_or_planned(store: Store) -> None:
    assert set(STATEMENTS) >= ELSEWHERE | READS_ALL
