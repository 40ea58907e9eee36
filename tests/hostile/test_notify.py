"""NOTIFY: any role that may connect can send one on the nodes' channel, and on every other. Only it may notice."""

from __future__ import annotations

import json
from collections.abc import Iterator

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queues.engine.cluster.notifications.formats import CHANNEL
from tests.hostile.unharmed import Neighbour, drawn
from tests.hostile.values import INTEGERS, TIMES, integers, texts
from tests.wire.broker import Database

#: Bytes of the longest text that PostgreSQL takes.
LONGEST = 7999
WORDS = (
    "ready", "dead", "interest", "disinterest", "gone", "transient", "ack", "purge", "mailbox", "evicted",
    "disconnect", "queue", "key", "route", "subscription", "periodic",
)  # fmt: skip
MEMBERS = ("node", "tags", "consumer", "body", "by", "high", "connection")
SCALARS = st.one_of(
    st.sampled_from((0, 1, 2, 3, *INTEGERS, 10**400, 0.5, True, None, "", "\0", "\ud800", "1", "-1", "eA==")),
    integers(),
    texts(64),
)
VALUES = SCALARS | st.lists(SCALARS, max_size=4) | st.dictionaries(SCALARS.map(str), SCALARS, max_size=3)
OBJECTS = st.builds(
    lambda word, value, members: json.dumps({word: value, **members}),
    st.sampled_from(WORDS) | texts(64), VALUES, st.dictionaries(st.sampled_from(MEMBERS), VALUES, max_size=4),
)  # fmt: skip
TEXTS = OBJECTS | texts(LONGEST)
NOTIFICATIONS = st.lists(st.tuples(TEXTS, TIMES), max_size=6)


def many(word: str, **members: object) -> list[str]:
    return [json.dumps({word: number, **members}) for number in range(5000)]


#: Inputs that once did harm, or might.
CASES: dict[str, list[str]] = {
    "a number where an object belongs": ['{"ready": 5}'],
    "no JSON": ["", " ", "{", "\ufeff{}", "NaN", "[" * LONGEST, '{"a":' * 1500, "9" * LONGEST, "'; drop table x; --"],
    "every type with nothing beside it": [
        f'{{"{word}": {value}}}' for word in WORDS for value in ("0", "[]", "{}", '""')
    ],
    "5000 times that every key changed": ['{"key": 1}', '{"key": 2}'] * 2500,
    "every type with every extreme": [
        json.dumps({word: value, **dict.fromkeys(MEMBERS, value)}) for word in WORDS for value in INTEGERS
    ],
    "every type with lists of extremes": [
        json.dumps({word: list(INTEGERS), "node": node, "tags": list(INTEGERS), "consumer": None})
        for word in WORDS for node in (0, 1, 2, 3, 2**31 - 1)
    ],
    "numbers of thousands of digits": [f'{{"{word}": {"9" * 7900}}}' for word in WORDS],
    "the longest": ['{"ready": {"1": ' + " " * (LONGEST - 19) + "1}}", "x" * LONGEST, "é" * (LONGEST // 2)],
    "half of a surrogate pair": ['{"purge": 1, "by": "\\ud800", "high": 9}', '{"\\udfff": 1}'],
    "members that come twice": ['{"ready": {"1": 1}, "ready": 5}', '{"gone": 1, "node": 2, "node": "x"}'],
    "nodes that were never there": many("gone"),
    "queues that were never there": many("queue") + many("dead") + many("subscription"),
    "interest of made-up nodes": [json.dumps({"interest": [n], "node": n + 1000}) for n in range(5000)],
    "5000 keys that changed": many("key"),
    "5000 times the same": ['{"route": 1}'] * 5000,
    "QoS 0 messages for anyone": [json.dumps({"transient": n, "node": n % 4, "body": "eA=="}) for n in range(2000)],
    "purges of every queue": [json.dumps({"purge": n, "by": "x" * 300, "high": -(2**63)}) for n in range(200)],
    "mailboxes taken from everyone": [json.dumps({"mailbox": n, "connection": n, "node": n % 4}) for n in range(2000)],
}  # fmt: skip


@pytest.fixture(scope="module")
def stranger(store: Database) -> Iterator[psycopg.Connection]:
    """A connection that uses no right but to connect."""
    with psycopg.connect(**store.parameters, autocommit=True) as connection:
        yield connection


#: The nodes' channel, and those that consumers of some queues listen on.
OTHERS = tuple(f"{CHANNEL}{number}" for number in (0, 1, 2**31))


def send(stranger: psycopg.Connection, notifications: list[str]) -> None:
    """In one transaction, so that they arrive together; texts that the protocol cannot carry are left out."""
    with stranger.transaction():
        for text in notifications:
            if "\0" not in text and len(text.encode("utf-8", "surrogatepass")) <= LONGEST:
                stranger.execute(b"select pg_notify(%s, %s)", (CHANNEL, text))
    for channel in OTHERS:
        stranger.execute(b"select pg_notify(%s, %s)", (channel, (notifications or [""])[0][:1000].replace("\0", "")))


pytestmark = pytest.mark.usefixtures("nothing_else_harmed")


@pytest.mark.parametrize("name", CASES)
def test_a_kept_case_harms_nothing_else(stranger: psycopg.Connection, name: str) -> None:
    send(stranger, CASES[name])


@drawn
@given(NOTIFICATIONS)
def test_drawn_notifications_harm_nothing_else(
    stranger: psycopg.Connection, neighbour: Neighbour, notifications: list[tuple[str, int]]
) -> None:
    send(stranger, [text for text, times in notifications for _ in range(times if len(text) < 500 else 1)])
    neighbour.served()
