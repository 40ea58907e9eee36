"""Finding messages: what fits, how far a look goes, and that the next one goes on there."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from queues.engine.errors import QueueNotFound
from queues.errors import OperationError
from queues.models import ArchivedMessage, Content, Message, Queue, State
from queues.operations import keys, search
from queues.operations.search import Criteria, Search, SearchTooSlow
from queues.store.queries import text
from tests.queues.store import make_queue, store

pytestmark = pytest.mark.django_db


def found(**criteria: Any) -> list[int]:
    """The places of all that fit, over as many looks as it takes."""
    looking, cursor, ids = Search(Criteria(**criteria)), "", []
    while True:
        look = looking.find(cursor)
        ids += look.ids
        if not (cursor := look.cursor):
            return ids


@pytest.fixture
def one() -> Message:
    """The message that a search is to find among others that differ in one thing each."""
    key, _ = keys.create_key("billing", protocols=["sspq"])
    other, _ = keys.create_key("other")
    queue, now = make_queue(), timezone.now()
    fields: dict[str, Any] = {
        "producer": key, "headers": {"tenant": "a", "n": 5}, "payload": b"\x00caf\xc3\xa9 42", "published_at": now,
    }  # fmt: skip
    store(make_queue("another"), **fields)
    store(queue, State.DEAD, **fields)
    for differs in (
        {"producer": other}, {"headers": {"tenant": "b"}}, {"headers": ["tenant"]}, {"payload": b"cafe"},
        {"published_at": now - timedelta(hours=2)}, {"published_at": now + timedelta(hours=2)},
    ):  # fmt: skip
        store(queue, **fields | differs)
    return store(queue, **fields)[0]


WANTED = {"queue": "orders", "state": "ready", "producer": "billing", "header": "tenant", "value": "a", "text": "é 4"}


def test_messages_that_match_all_criteria_are_found(one: Message) -> None:
    near = {"since": one.published_at - timedelta(hours=1), "until": one.published_at + timedelta(hours=1)}
    assert found(**WANTED, **near) == [one.pk]


@pytest.mark.parametrize("left_out", ["queue", "state", "producer", ("header", "value"), "text"])
def test_each_criterion_leaves_something_out(one: Message, left_out: str | tuple[str, ...]) -> None:
    near = {"since": one.published_at - timedelta(hours=1), "until": one.published_at + timedelta(hours=1)}
    rest = {name: value for name, value in WANTED.items() if name not in left_out}
    assert len(found(**rest, **near)) > 1
    assert one.pk in found(**rest, **near)


def test_a_header_is_found_by_its_name_and_a_number_by_its_text(one: Message) -> None:
    assert one.pk in found(queue="orders", header="n", value="5")
    assert found(queue="orders", header="absent") == []


def test_of_a_queue_all_states_are_looked_at_and_leases_too() -> None:
    queue = make_queue()
    every = [store(queue, state)[0].pk for state in State]
    store(make_queue("another"), State.LEASED)
    assert sorted(found(queue="orders")) == every
    assert found(queue="orders", state="leased") == [every[State.LEASED], every[State.DEAD_LEASED]]


def test_a_key_is_found_in_any_queue() -> None:
    pair = [store(make_queue(name), key="k1")[0].pk for name in ("a", "b")]
    store(Queue.objects.get(name="a"), key="k2")
    assert found(key="k1") == pair
    assert found(key="k1", queue="b") == pair[1:]


@pytest.mark.parametrize(("protocol", "content"), [("celery", Content.CELERY), ("peerbus", Content.LETTER)])
def test_a_protocol_is_known_by_the_content_or_by_a_key_for_it_alone(protocol: str, content: int, one: Message) -> None:
    message = store(make_queue("tasks"), content=content)[0]
    assert found(protocol=protocol) == [message.pk]
    assert found(protocol="sspq", queue="another") != []
    assert found(protocol="overhop") == []


def test_a_message_is_found_by_its_place_and_by_its_first_id() -> None:
    queue = make_queue()
    moved, other = store(queue, origin_id=7)[0], store(queue)[0]
    store(queue)
    assert found(ids=(7, other.pk)) == [moved.pk, other.pk]


@pytest.mark.parametrize("criteria", [{"queue": "orders"}, {}, {"queue": "orders", "state": "ready"}])
def test_a_look_is_bounded_and_the_next_one_goes_on(monkeypatch: pytest.MonkeyPatch, criteria: dict[str, str]) -> None:
    monkeypatch.setattr(search, "ROWS", 4)
    monkeypatch.setattr(search, "LOOKS", 2)
    monkeypatch.setattr(search, "FIRST_LOOK", 1)
    queue = make_queue()
    ids = [message.pk for message in store(queue, count=20)]
    here = store(queue, headers={"here": 1})[0].pk
    look = Search(Criteria(**criteria, header="here")).find()  # type: ignore[arg-type]
    assert (look.ids, look.looked) == ([], 8)
    assert look.cursor
    assert found(**criteria, header="here") == [here]
    first = Search(Criteria(**criteria)).find("", 3)  # type: ignore[arg-type]
    assert (first.ids, first.looked) == (ids[:3], 3)
    assert Search(Criteria(**criteria)).find(first.cursor, 3).ids == ids[3:6]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("criteria", "index"),
    [
        ({"queue": "orders", "state": "ready"}, "message_ready"),
        ({"queue": "orders", "state": "dead"}, "message_dead"),
        ({"key": "k"}, "message_key"), ({}, "queues_message_pkey"),
    ],
)  # fmt: skip
def test_a_look_goes_by_an_index(
    monkeypatch: pytest.MonkeyPatch, criteria: dict[str, str], index: str
) -> None:
    make_queue()
    plans: list[str] = []

    def explained(name: str, using: str, **parameters: Any) -> list[tuple[Any, ...]]:
        with connection.cursor() as cursor:
            cursor.execute(f"explain {text(name)}", parameters)
            plans.append("\n".join(row[0] for row in cursor.fetchall()))
        return [([], 0, None, None)]

    monkeypatch.setattr(search, "query", explained)
    with connection.cursor() as cursor:
        cursor.execute(
            "insert into queues_message (id, queue_id, state, payload, due_at, key) "
            "select n, n % 500, (array[0, 2, 3])[n % 3 + 1], 'x', now(), n from generate_series(1, 50000) n"
        )
        cursor.execute("analyze queues_message")
    Search(Criteria(**criteria)).look("0:-5", 50)  # type: ignore[arg-type]
    assert index in plans[0]
    assert "Seq Scan on queues_message" not in plans[0]


def test_later_messages_are_passed_over() -> None:
    queue = make_queue()
    ids = [message.pk for message in store(queue, count=3)]
    assert Search(Criteria(), high=ids[1]).find().ids == ids[:2]


def archive(count: int, queue: Queue, seconds_ago: float, **fields: Any) -> None:
    at = timezone.now() - timedelta(seconds=seconds_ago)
    ArchivedMessage.objects.bulk_create(
        ArchivedMessage(
            id=int(10_000 - seconds_ago), queue=queue, outcome=0, attempts=0, published_at=at, finished_at=at, size=1,
            **fields,
        )
        for _ in range(count)
    )  # fmt: skip


def test_the_archive_is_searched_from_the_newest_back_over_times_without_any() -> None:
    queue = make_queue()
    for age in (5, 50, 4000, 900_000):
        archive(1, queue, age, payload=b"kept")
    archive(1, make_queue("another"), 60)
    assert found(state="finished", queue="orders") == [9995, 9950, 6000, -890_000]
    assert found(state="finished", text="nowhere") == []
    near = timezone.now() - timedelta(seconds=1000)
    assert found(state="finished", queue="orders", since=near) == [9995, 9950]
    assert found(state="finished", queue="orders", until=near) == [6000, -890_000]


def test_finished_messages_of_one_moment_are_each_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    queue, at = make_queue(), timezone.now()
    ArchivedMessage.objects.bulk_create(
        ArchivedMessage(id=n, queue=queue, outcome=0, attempts=0, published_at=at, finished_at=at, size=1)
        for n in range(5)
    )
    looking, cursor, ids = Search(Criteria(state="finished")), "", []
    while True:
        look = looking.find(cursor, 2)
        ids += look.ids
        if not (cursor := look.cursor):
            break
    assert ids == [4, 3, 2, 1, 0]


@pytest.mark.parametrize(
    "criteria", [{"state": "lost"}, {"value": "5"}, {"producer": "nowhere"}, {"producer": "key", "protocol": "sspq"}]
)
def test_an_invalid_search_is_refused(criteria: dict[str, str]) -> None:
    keys.create_key("key")
    with pytest.raises(OperationError):
        Search(Criteria(**criteria)).find()  # type: ignore[arg-type]
    with pytest.raises(QueueNotFound):
        Search(Criteria(queue="nowhere"))


@pytest.mark.parametrize(
    "cursor", ["x", "1", "1:x", "2026,1", "2026-01-01T00:00:00,1,60", "2026-01-01T00:00:00Z,1,nan"]
)
@pytest.mark.parametrize("state", ["ready", "finished"])
def test_a_cursor_that_is_none_is_refused(cursor: str, state: str) -> None:
    with pytest.raises(OperationError):
        Search(Criteria(state=state)).find(cursor)


def test_a_look_that_takes_too_long_is_cancelled_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    store(make_queue())
    monkeypatch.setattr(search, "TIMEOUT", 1)
    monkeypatch.setattr(
        search, "query", lambda name, using, **_: connection.cursor().execute("select pg_sleep(5)")
    )
    with pytest.raises(SearchTooSlow):
        Search(Criteria(text="x")).find()
    with connection.cursor() as cursor:
        cursor.execute("show statement_timeout")
        assert cursor.fetchone() == ("0",)


def test_criteria_come_back_from_json() -> None:
    criteria = Criteria(queue="orders", since=timezone.now(), text="é", ids=(3, 4))
    assert Criteria.from_json(criteria.to_json()) == criteria
    assert str(criteria).startswith("queue orders, since ")
    assert "2 selected" in str(criteria)
    assert str(Criteria()) == "all messages"
    with pytest.raises(ValueError, match="wrong"):
        Criteria.from_json({"wrong": 1})
