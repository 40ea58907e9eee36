"""The front page: the state of the broker, what is wrong, and ending what holds back vacuum."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from html import unescape
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django.fixtures import DjangoAssertNumQueries

from queues.database.parameters import connection_parameters
from queues.models import (
    AuditChain,
    AuditJournalEntry,
    AuditVerification,
    ConnectionTotal,
    DeadNode,
    EtlRun,
    EtlSchedule,
    Interest,
    Node,
    QueueSample,
    SampleMark,
    State,
    Subscription,
)
from queues.operations import monitor, overview
from queues.operations.monitor import reader
from queues.operations.overview import HorizonHolder
from queues.operations.problems import find_problems
from queues.operations.state import BrokerState, DiskSpace
from queues.store.samples import ALL_QUEUES
from tests.queues.admin.test_admin import address, text_of, unprivileged
from tests.queues.store import make_node, make_queue, store

__all__ = ["unprivileged"]
pytestmark = pytest.mark.django_db

#: No page takes more.
MAX_QUERIES = 12


@pytest.fixture(autouse=True)
def _a_look_at_once() -> Iterator[None]:
    reader.forget()
    yield
    reader.forget()


def user_with(*permissions: str) -> User:
    user = User.objects.create_user("operator", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    return user


def sample(queue: int, minutes_ago: float = 0, **fields: int) -> None:
    values = dict.fromkeys(("ready", "leased", "delayed", "dead", "peak", "published", "settled", "died"), 0)
    at = timezone.now().replace(second=0, microsecond=0) - timedelta(minutes=minutes_ago)
    QueueSample.objects.create(queue=queue, at=at, seconds=60, **values | fields)


def problems() -> dict[str, str]:
    """The texts of the problems by kind, as they are now."""
    reader.forget()
    return {problem.kind: problem.text for problem in reader.read().problems}


# The page.


def test_the_front_page_shows_figures_and_nothing_wrong(
    admin_client: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    node = make_node()
    ConnectionTotal.objects.create(node=node, protocol="blipmq", connections=4321, in_rate=0.0, out_rate=0.0)
    queue = make_queue("orders")
    store(queue, count=1234)
    store(queue, State.DELAYED, 5)
    with django_assert_max_num_queries(MAX_QUERIES):
        text = " ".join(text_of(admin_client.get(reverse("admin:index"))).split())
    assert "Nothing is wrong." in text
    assert "Ready 1,234 5 delayed" in text
    assert "Nodes 1" in text
    assert "Connections 4,321 of clients" in text
    assert "Busiest queues" in text
    assert text.index("Nothing is wrong.") < text.index("Busiest queues") < text.rindex("Subscriptions")


def test_the_models_stand_in_groups_that_follow_the_work(admin_client: Client) -> None:
    groups = {
        group["name"]: [model["model"]._meta.label for model in group["models"]]
        for group in admin_client.get(reverse("admin:index")).context["app_list"]
    }
    assert list(groups) == ["Messages", "Consumers", "Access", "History", "System"]
    assert groups["Access"] == ["queues.ApiKey", "auth.User", "auth.Group"]
    assert {"queues.Queue", "queues.Message"} <= set(groups["Messages"])
    assert {"queues.Node", "hydra.Node"} <= set(groups["System"]), "what is not named stands last"
    everything = [name for names in groups.values() for name in names]
    registered = {model._meta.label for model in admin.site._registry}
    assert len(everything) == len(set(everything))
    assert set(everything) <= registered
    assert registered - set(everything) <= {"queues.AuditRow"}, "its pages are reached from the chains"


def test_a_refresh_brings_what_has_changed_only(
    admin_client: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    make_node()
    first = admin_client.get(reverse("admin:state")).json()
    assert set(first) == {"problems", "figures", "reasons", "busiest"}
    known = {name: section["version"] for name, section in first.items()}
    with django_assert_max_num_queries(2):  # session and user: the state is not a second old
        assert admin_client.get(reverse("admin:state"), known).json() == {}
    store(make_queue("orders"), State.DEAD)
    reader.forget()
    with django_assert_max_num_queries(MAX_QUERIES):
        changed = admin_client.get(reverse("admin:state"), known).json()
    assert set(changed) == {"problems", "figures", "reasons", "busiest"}
    assert "orders has a dead letter" in changed["problems"]["html"]


def test_ten_browsers_cost_one_look(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []

    def take(*given: Any, **named: Any) -> overview.Overview:
        looks.append(1)
        return overview.take_overview(*given, **named)

    monkeypatch.setattr(monitor, "AGE", 3600.0)
    monkeypatch.setattr(monitor, "take_overview", take)
    for _ in range(10):
        assert admin_client.get(reverse("admin:state")).status_code == 200
    assert len(looks) == 1


def test_all_queues_are_read_now_and_then_although_few_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[bool] = []

    def take(*given: Any, everything: bool) -> overview.Overview:
        looks.append(everything)
        return overview.take_overview(*given, everything=everything)

    monkeypatch.setattr(monitor, "AGE", 0.0)
    monkeypatch.setattr(monitor, "REST", 0)
    monkeypatch.setattr(monitor, "take_overview", take)
    for _ in range(3):
        reader.read()
    monkeypatch.setattr(monitor, "SLOW_AGE", 0.0)
    reader.read()
    assert looks == [True, False, False, True]


def test_a_user_who_may_not_view_queues_sees_no_state(unprivileged: Client) -> None:
    assert unprivileged.get(reverse("admin:state")).status_code == 403
    page = unprivileged.get(reverse("admin:index"))
    assert page.status_code == 200
    assert b'id="broker"' not in page.content


def test_a_logged_out_user_is_redirected_to_the_login(client: Client) -> None:
    assert client.get(reverse("admin:state")).status_code == 302


def test_a_database_that_does_not_answer_in_time_is_said_so(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch, transactional_db: None
) -> None:
    monkeypatch.setattr(monitor, "LIMIT", 200)
    with psycopg.connect(**connection_parameters()) as other:
        other.execute("lock table queues_queue")
        page = admin_client.get(reverse("admin:index"))
    assert "could not be read" in text_of(page)
    assert "canceling statement due to statement timeout" in text_of(page)
    with connection.cursor() as cursor:
        cursor.execute("show statement_timeout")
        assert cursor.fetchone() == ("0",), "the limit ended with the statement"


def test_while_first_messages_are_hard_to_find_the_rest_is_shown(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch, transactional_db: None
) -> None:
    store(make_queue(), count=7)
    monkeypatch.setattr(monitor, "OLDEST_LIMIT", 200)
    with psycopg.connect(**connection_parameters()) as other:
        other.execute("lock table queues_message")
        text = " ".join(text_of(admin_client.get(reverse("admin:index"))).split())
    assert "Ready 7" in text
    assert "Oldest - first ready message" in text


def test_queue_names_are_shown_as_text(admin_client: Client) -> None:
    store(make_queue("<script>alert(1)</script>"), State.DEAD)
    page = admin_client.get(reverse("admin:index")).content.decode()
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page


def test_rates_are_those_since_the_last_look_or_the_last_sample() -> None:
    queue = make_queue()
    SampleMark.objects.create(
        queue=ALL_QUEUES, at=timezone.now() - timedelta(seconds=50),
        **dict.fromkeys(("ready", "leased", "delayed", "dead", "published", "settled"), 0),
    )  # fmt: skip
    store(queue, count=100)
    first = overview.take_overview()
    assert first.in_rate == pytest.approx(2, rel=0.2)
    assert overview.take_overview(first).in_rate == 0


# Problems.


def test_dead_letters_that_came_are_a_problem_until_they_are_gone() -> None:
    queue = make_queue("orders")
    assert "dead" not in problems()
    [message] = store(queue, State.DEAD)
    assert problems()["dead"] == "orders has a dead letter that came within the hour."
    SampleMark.objects.create(
        queue=queue.pk, at=timezone.now(), dead=1,
        **dict.fromkeys(("ready", "leased", "delayed", "published", "settled"), 0),
    )  # fmt: skip
    assert "dead" not in problems(), "they were there before the samples of this hour"
    sample(queue.pk, died=1, dead=1)
    assert "dead" in problems()
    with connection.cursor() as cursor:
        cursor.execute("insert into queues_queuetally (queue_id, dead) values (%s, -1)", [queue.pk])
    assert "dead" not in problems(), message


def test_a_queue_that_grows_is_a_problem_and_one_that_shrinks_is_not() -> None:
    queue, shrinks = make_queue("orders"), make_queue("shrinks")
    store(queue, count=1000), store(shrinks, count=1000)
    for minute in range(5):
        sample(queue.pk, minute, ready=1000 - 200 * minute, published=200, settled=10)
        sample(shrinks.pk, minute, ready=1000 + 200 * minute, published=20, settled=100)
    assert problems()["growing"] == "orders grows: 1,000 messages wait, 800 more than 10 minutes ago."
    with connection.cursor() as cursor:
        cursor.execute("insert into queues_queuetally (queue_id, ready) values (%s, -1000)", [queue.pk])
    assert "growing" not in problems(), "it was purged"


def test_a_queue_has_one_line_that_says_all_that_is_wrong_with_it(admin_client: Client) -> None:
    queue = make_queue("orders")
    store(queue, count=1000, published_at=timezone.now() - timedelta(minutes=2)), store(queue, State.DEAD)
    for minute in range(5):
        sample(queue.pk, minute, ready=1000 - 200 * minute, published=200, settled=10, completed=10)
    make_node()
    reader.forget()
    [problem] = [one for one in reader.read().problems if one.queue]
    assert problem.kind == "deserted"
    assert problem.text == (
        "orders has lost its consumers: messages wait, some were consumed within the hour. "
        "It grows: 1,000 messages wait, 800 more than 10 minutes ago. It has a dead letter that came within the hour."
    )
    page = admin_client.get(reverse("admin:index"))
    assert "One thing needs attention." in " ".join(text_of(page).split())
    assert f'{reverse("admin:queues_message_reasons")}?queue=orders' in page.content.decode()


def test_a_queue_whose_messages_consumers_have_is_served_while_they_ask_for_no_more() -> None:
    queue = make_queue("orders")
    store(queue, published_at=timezone.now() - timedelta(minutes=2)), store(queue, State.LEASED)
    sample(queue.pk, 4, settled=10, completed=10)
    assert "deserted" not in problems()
    [state] = reader.read().overview.queues
    assert state.nodes == 1


def test_the_front_page_has_the_reasons_of_dead_letters_and_its_figures_lead_on(admin_client: Client) -> None:
    queue = make_queue("orders")
    for n in range(4):
        store(queue, State.DEAD, error=f"card {n} refused")
    reader.forget()
    page = admin_client.get(reverse("admin:index"))
    assert "card <number> refused orders 4" in " ".join(text_of(page).split())
    [address] = re.findall('href="([^"]*reason=card[^"]*)"', page.content.decode())
    assert len(admin_client.get(unescape(address)).context["rows"]) == 4
    figures = re.findall(r'<dt>([^<]*)</dt><dd>\s*<a href="([^"]*)"', page.content.decode())
    assert len(figures) == 11
    for name, address in figures:
        assert admin_client.get(unescape(address)).status_code == 200, name
    with connection.cursor() as cursor:
        cursor.execute("insert into queues_queuetally (queue_id, dead) values (%s, -4)", [queue.pk])
    reader.forget()
    assert "card <number>" not in text_of(admin_client.get(reverse("admin:index")))


def test_a_paused_queue_does_not_need_more_consumers() -> None:
    queue = make_queue("orders", paused=True)
    store(queue, count=1000)
    for minute in range(5):
        sample(queue.pk, minute, ready=1000 - 200 * minute, published=200)
    assert set(problems()) & {"growing", "paused"} == {"paused"}


def test_a_queue_whose_consumers_went_is_a_problem_until_one_is_back() -> None:
    queue = make_queue("orders")
    store(queue, published_at=timezone.now() - timedelta(minutes=2))
    assert "deserted" not in problems(), "it never had any"
    sample(queue.pk, 5, settled=10)
    assert "deserted" not in problems(), "it was purged"
    sample(queue.pk, 4, settled=10, completed=10)
    assert problems()["deserted"].startswith("orders has lost its consumers")
    Interest.objects.create(queue=queue, node=make_node())
    assert "deserted" not in problems()


def test_a_paused_queue_with_messages_is_a_notice() -> None:
    store(make_queue("orders", paused=True))
    reader.forget()
    [notice] = [one for one in reader.read().problems if one.kind == "paused"]
    assert notice.notice
    assert notice.text == "orders is paused, and messages wait in it."


def test_a_broken_chain_is_a_problem_until_it_verifies() -> None:
    chain = AuditChain.objects.create(name="peerbus")
    AuditVerification.objects.create(chain=chain, ok=False, rows=3, broken_seq=3, finding="row 3 is missing", seconds=1)
    assert problems()["chain"] == "The audit chain “peerbus” is broken: row 3 is missing"
    AuditVerification.objects.create(chain=chain, ok=True, rows=4, seconds=1, at=timezone.now() + timedelta(seconds=1))
    assert "chain" not in problems()


def test_a_run_that_is_late_or_failed_is_a_problem() -> None:
    past = timezone.now() - timedelta(minutes=30)
    schedule = EtlSchedule.objects.create(name="nightly", cron="0 3 * * *", next_run_at=past)
    EtlRun.objects.create(state="failed", trigger="x", output="/o", error="no space", ended_at=past)
    found = problems()
    assert found["schedule"] == f"The ETL run “nightly” is late: it was due at {past:%Y-%m-%d %H:%M} UTC."
    assert found["run"] == "The last ETL run failed: no space"
    EtlSchedule.objects.filter(pk=schedule.pk).update(enabled=False)
    EtlRun.objects.create(state="succeeded", trigger="x", output="/o", ended_at=timezone.now())
    assert not {"schedule", "run"} & set(problems())


def test_subscriptions_that_will_end_are_a_notice_with_the_time(admin_client: Client) -> None:
    ends = timezone.now() + timedelta(days=3)
    for n in range(2):
        queue = make_queue(f"_subscription/{n}", kind="subscription")
        Subscription.objects.create(topic=b"t", qos=1, queue=queue, ends_at=ends + timedelta(days=n))
    reader.forget()
    [notice] = [one for one in reader.read().problems if one.kind == "idle"]
    assert notice.notice
    assert notice.text == (
        f"2 subscriptions that nobody polls end with their messages, the first of them at {ends:%Y-%m-%d %H:%M} UTC."
    )
    [page] = re.findall(r'href="([^"]*subscription/\?ends_at[^"]*)"', admin_client.get("/admin/").content.decode())
    assert ends.strftime("%Y") in text_of(admin_client.get(page))


def test_nodes_that_die_are_a_problem_unless_their_engine_lives_on() -> None:
    DeadNode.objects.create(id=1, name="runwire", host="a", pid=1, started_at=timezone.now() - timedelta(hours=1))
    for id in (2, 3):
        DeadNode.objects.create(id=id, name="runwire", host="a", pid=id, started_at=timezone.now(), engine=uuid4())
    assert problems()["restarts"] == (
        "Nodes die: 2 that began within 10 minutes ended without leaving (runwire)."
    )
    engine = DeadNode.objects.get(id=3).engine
    Node.objects.create(name="runwire", host="a", pid=3, first_message_id=0, engine=engine)
    assert "restarts" not in problems(), "its connection to the database was lost, and it is back"


def test_a_disk_that_fills_is_a_problem_with_the_hours_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "database_disk", lambda using: DiskSpace(1000 << 30, 500 << 30))
    sample(ALL_QUEUES, 31, database_bytes=10 << 30)
    sample(ALL_QUEUES, 1, database_bytes=11 << 30)
    assert "disk" not in problems(), "2 GiB an hour: for ten days"
    sample(ALL_QUEUES, 0, database_bytes=60 << 30)
    assert problems()["disk"] == "The database's disk has 500.0 GiB left, for about 5 h at the pace of the last hour."
    monkeypatch.setattr(monitor, "database_disk", lambda using: None)
    assert problems()["disk"].startswith("The database grows by")


def test_without_a_node_nothing_works_and_the_page_says_so() -> None:
    assert problems()["nodes"] == "No node of the broker runs."
    make_node()
    assert "nodes" not in problems()


def test_many_problems_of_a_kind_are_shortened() -> None:
    for n in range(8):
        store(make_queue(f"orders.{n}"), State.DEAD)
    reader.forget()
    dead = [one for one in reader.read().problems if one.kind.startswith("dead")]
    assert [one.kind for one in dead] == ["dead"] * 4 + ["dead-more"]
    assert dead[-1].text == "4 more like this."


def test_horizon_holders_without_a_session_have_texts_of_their_own() -> None:
    held = [
        HorizonHolder("prepared", "tx-1", "", "app", "", "", "prepared", 300.0, 5),
        HorizonHolder("slot", "standby", "", "", "", "", "inactive", None, 20_000_000),
    ]
    state = BrokerState(overview.Overview(timezone.now(), 1, 0, 1, holders=held), {})
    assert [problem.text for problem in find_problems(state)] == [
        "Vacuum is held back by the prepared transaction tx-1.",
        "Vacuum is held back by the inactive replication slot standby.",
    ]


# The horizon guard.


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch, transactional_db: None) -> Iterator[psycopg.Connection[Any]]:
    """A session that holds back vacuum, with a limit of no time."""
    monkeypatch.setattr(overview, "HELD_SECONDS", 0)
    with psycopg.connect(**connection_parameters(), application_name="report") as other:
        other.execute("set transaction isolation level repeatable read")
        other.execute("select count(*) from queues_queue where name <> 'a secret'")
        yield other


def holder() -> HorizonHolder:
    reader.forget()
    return next(one for one in reader.read().overview.holders if one.application == "report")


def test_a_backup_that_holds_back_vacuum_is_a_notice() -> None:
    holders = [
        HorizonHolder("backend", "1", "", "ann", application, "copy", "active", 300.0, 5)
        for application in ("pg_dump", "psql")
    ]
    state = BrokerState(overview.Overview(timezone.now(), 1, 0, 1, holders=holders), {})
    assert [problem.notice for problem in find_problems(state)] == [True, False]


def test_the_session_that_holds_back_vacuum_is_named_and_ended(
    admin_client: Client, pinned: psycopg.Connection[Any]
) -> None:
    found = holder()
    page = admin_client.get(reverse("admin:index")).content.decode()
    assert f"report of {found.user}, pid {found.name}" in page
    assert "a secret" in page
    where = f"{reverse('admin:end_backend', args=[found.name])}?started={found.started}"
    assert where.replace("&", "&amp;") in page
    asked = admin_client.get(where)
    assert "This ends the session" in text_of(asked)
    assert pinned.execute("select 1").fetchone() == (1,), "asking ends nothing"
    ended = admin_client.post(where, follow=True)
    assert f"Ended the session {found.name}." in text_of(ended)
    with pytest.raises(psycopg.OperationalError):
        pinned.execute("select 1")
    [entry] = AuditJournalEntry.objects.filter(event="end-backend")
    assert (entry.chain, entry.record_id, entry.sender) == ("operators", f"backend:{found.name}", "admin")
    assert "secret" not in entry.recipient
    assert "holder" not in problems()


def test_another_session_with_the_same_process_id_is_not_ended(
    admin_client: Client, pinned: psycopg.Connection[Any]
) -> None:
    where = reverse("admin:end_backend", args=[holder().name])
    answer = admin_client.post(f"{where}?started=1.5", follow=True)
    assert "does not hold back vacuum any more" in text_of(answer)
    assert admin_client.post(where).status_code == 404
    assert pinned.execute("select 1").fetchone() == (1,)


def test_ending_a_session_needs_its_permission(client: Client, pinned: psycopg.Connection[Any]) -> None:
    found = holder()
    where = f"{reverse('admin:end_backend', args=[found.name])}?started={found.started}"
    client.force_login(user_with("view_queue", "change_queue", "delete_queue"))
    assert client.post(where).status_code == 403
    page = client.get(reverse("admin:index")).content.decode()
    assert "Vacuum is held back" in page
    assert "End the session" not in page
    assert pinned.execute("select 1").fetchone() == (1,)
    client.force_login(User.objects.create_user("ender", is_staff=True))
    User.objects.get(username="ender").user_permissions.set(Permission.objects.filter(codename="end_backend"))
    assert client.post(where).status_code == 302
    with pytest.raises(psycopg.OperationalError):
        pinned.execute("select 1")


def test_every_query_of_a_look_for_a_user_with_groups_is_within_the_limit(
    client: Client, django_assert_max_num_queries: DjangoAssertNumQueries, transactional_db: None
) -> None:
    make_node()
    store(make_queue())
    client.force_login(user_with("view_queue"))
    with django_assert_max_num_queries(MAX_QUERIES):
        assert client.get(reverse("admin:state")).status_code == 200
    assert json.loads(client.get(reverse("admin:state")).content)["figures"]["html"]
    assert address("queue")
