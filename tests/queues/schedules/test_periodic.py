"""Periodic jobs."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import OperationalError, connection, connections
from django.utils import timezone

from queues.engine.errors import QueueNotFound
from queues.models import Message, PeriodicJob, Queue, State
from queues.models.message import Content
from queues.operations import queues as queue_operations
from queues.operations.periodic import (
    InvalidPeriodicJob,
    PeriodicJobExists,
    PeriodicJobNotFound,
    add_periodic,
    get_periodic,
    run_now,
)
from queues.schedules import periodic, planning
from queues.schedules.periodic import JobUnfinished, QueueGone, Scheduler, run_due
from queues.schedules.planning import save_planned, set_enabled
from tests.queues.store import listening, make_node, make_queue

HOURLY = "0 * * * *"
#: No run of it comes while a test runs, whatever the time.
RARE = "0 0 29 2 *"


def make_due(job: PeriodicJob, late: float = 1.0) -> PeriodicJob:
    """Let a run have been due some seconds ago."""
    PeriodicJob.objects.filter(pk=job.pk).update(next_run_at=timezone.now() - timedelta(seconds=late))
    job.refresh_from_db()
    return job


def due_job(name: str = "nightly", queue: str = "reports", cron: str = RARE, **fields: Any) -> PeriodicJob:
    if not Queue.objects.filter(name=queue).exists():
        make_queue(queue)
    return make_due(add_periodic(name, cron, queue, **fields))


# Runs.


@pytest.mark.django_db
def test_a_due_job_is_published_and_planned_for_its_next_time() -> None:
    job = due_job(cron=HOURLY, payload={"kind": "full", "of": ["ä", 1, None]}, priority=7, max_attempts=3)
    before = timezone.now()
    wait = run_due()
    message = Message.objects.get()
    assert json.loads(bytes(message.payload)) == {"kind": "full", "of": ["ä", 1, None]}
    assert (message.queue.name, message.state, message.max_attempts) == ("reports", State.READY, 3)
    assert (message.content, -(message.pk >> 56)) == (Content.JSON, 7)
    job.refresh_from_db()
    assert job.last_message_id == (message.origin_id or message.pk)
    assert job.last_run_at is not None
    assert job.last_run_at >= before - timedelta(seconds=1)
    next_hour = before.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    assert job.next_run_at in (next_hour, next_hour + timedelta(hours=1))
    assert job.last_error == ""
    assert 0 <= wait <= 60


@pytest.mark.django_db
def test_a_job_that_is_not_due_waits() -> None:
    make_queue("reports")
    add_periodic("nightly", RARE, "reports")
    run_due()
    assert not Message.objects.exists()


@pytest.mark.django_db
def test_runs_that_were_missed_are_made_up_for_by_one() -> None:
    make_due(due_job(), late=86_400.0 * 3)
    run_due()
    run_due()
    assert Message.objects.count() == 1


@pytest.mark.django_db
@pytest.mark.parametrize(("ahead", "most", "least"), [(30.0, 30.0, 20.0), (7200.0, 60.0, 60.0)])
def test_the_wait_lasts_until_the_next_run_but_no_longer_than_a_minute(ahead: float, most: float, least: float) -> None:
    job = due_job()
    PeriodicJob.objects.filter(pk=job.pk).update(next_run_at=timezone.now() + timedelta(seconds=ahead))
    assert least <= run_due() <= most


@pytest.mark.django_db
def test_without_periodic_jobs_there_is_nothing_to_do_for_a_minute() -> None:
    assert run_due() == 60.0


@pytest.mark.django_db
def test_more_jobs_than_fit_into_a_transaction_are_due_at_once_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "BATCH", 2)
    for n in range(3):
        due_job(f"job {n}")
    assert run_due() == 0.0
    run_due()
    assert Message.objects.count() == 3


@pytest.mark.django_db
def test_a_disabled_job_does_not_run_and_has_no_next_run() -> None:
    job = due_job()
    set_enabled(job, False)
    run_due()
    job.refresh_from_db()
    assert (job.enabled, job.next_run_at) == (False, None)
    assert not Message.objects.exists()
    set_enabled(job, True)
    job.refresh_from_db()
    assert job.next_run_at is not None
    assert job.next_run_at > timezone.now()


@pytest.mark.django_db
def test_a_row_enabled_by_hand_is_planned_before_it_runs() -> None:
    job = due_job(enabled=False)
    PeriodicJob.objects.filter(pk=job.pk).update(enabled=True, next_run_at=None)
    run_due()
    job.refresh_from_db()
    assert job.next_run_at is not None
    assert job.next_run_at > timezone.now()
    assert not Message.objects.exists()


# Obstacles to a run.


@pytest.mark.django_db
def test_a_full_queue_is_told_and_the_schedule_goes_on() -> None:
    make_queue("reports", max_length=1)
    due_job("first"), due_job("second"), due_job("third", "other")
    run_due()
    assert sorted(Message.objects.values_list("queue__name", flat=True)) == ["other", "reports"]
    refused = PeriodicJob.objects.get(last_message_id=None)
    assert "full" in refused.last_error
    assert refused.last_run_at is None
    assert refused.next_run_at is not None
    assert refused.next_run_at > timezone.now()
    Message.objects.all().delete()
    Queue.objects.update(max_length=None)
    make_due(refused)
    run_due()
    refused.refresh_from_db()
    assert refused.last_error == ""


@pytest.mark.django_db
def test_a_deleted_queue_is_told_and_the_schedule_goes_on() -> None:
    job = due_job()
    queue_operations.delete_queue("reports")
    due_job("other", "other")
    run_due()
    job = get_periodic("nightly")
    assert (job.queue, job.last_error) == (None, "Its queue was deleted; choose another one.")
    assert job.next_run_at is not None
    assert job.next_run_at > timezone.now()
    assert Message.objects.count() == 1
    with pytest.raises(QueueGone):
        run_now(job)


@pytest.mark.django_db
@pytest.mark.parametrize("wrong", [{"cron": "61 * * * *"}, {"timezone": "Mars/Olympus"}])
def test_a_schedule_that_cannot_be_read_is_told_and_holds_up_no_other(wrong: dict[str, str]) -> None:
    job = due_job()
    due_job("other")
    PeriodicJob.objects.filter(pk=job.pk).update(**wrong)
    run_due()
    job.refresh_from_db()
    assert job.next_run_at is None
    assert job.last_error.startswith("It cannot be planned. ")
    assert next(iter(wrong.values())).split()[0] in job.last_error
    run_due()
    assert Message.objects.count() == 2


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("state", "runs"),
    [(State.READY, 1), (State.DELAYED, 1), (State.LEASED, 1), (State.DEAD, 2), (None, 2)],
)
def test_one_at_a_time_skips_a_run_while_the_last_job_is_unfinished(state: State | None, runs: int) -> None:
    job = due_job(unique=True, priority=3)
    run_due()
    first = Message.objects.get()
    if state is None:
        first.delete()
    else:
        due_at, node = timezone.now() + timedelta(hours=1), make_node() if state == State.LEASED else None
        Message.objects.update(state=state, due_at=due_at, node=node)
    make_due(job)
    run_due()
    job.refresh_from_db()
    assert (job.last_message_id == first.origin_id) is (runs == 1)
    assert ("unfinished" in job.last_error) is (runs == 1)
    assert job.next_run_at is not None
    assert job.next_run_at > timezone.now()


@pytest.mark.django_db
def test_one_at_a_time_follows_a_job_that_went_to_the_tail() -> None:
    job = due_job(unique=True)
    run_due()
    first = Message.objects.get().pk
    Message.objects.update(id=first + 1, origin_id=first)
    make_due(job)
    run_due()
    assert Message.objects.count() == 1


# By hand.


@pytest.mark.django_db
def test_run_now_publishes_and_leaves_the_schedule_alone() -> None:
    make_queue("reports")
    job = add_periodic("nightly", HOURLY, "reports")
    planned = job.next_run_at
    id = run_now(job)
    job.refresh_from_db()
    assert (job.next_run_at, job.last_message_id) == (planned, id)
    assert Message.objects.get().pk == id


@pytest.mark.django_db
def test_run_now_respects_one_at_a_time() -> None:
    make_queue("reports")
    job = add_periodic("nightly", HOURLY, "reports", unique=True)
    run_now(job)
    with pytest.raises(JobUnfinished, match="unfinished"):
        run_now(job)
    assert Message.objects.count() == 1


@pytest.mark.django_db
def test_a_new_schedule_is_planned_anew_and_a_new_payload_is_not() -> None:
    job = due_job()
    planned = job.next_run_at
    PeriodicJob.objects.update(last_error="it was too large")
    job.refresh_from_db()
    job.payload = {"new": True}
    save_planned(job, ["payload"])
    job.refresh_from_db()
    assert (job.payload, job.next_run_at, job.last_error) == ({"new": True}, planned, "")
    job.cron = " 30   4 1 1  * "
    save_planned(job, ["cron"])
    job.refresh_from_db()
    assert job.cron == "30 4 1 1 *"
    assert job.next_run_at is not None
    assert (job.next_run_at.month, job.next_run_at.hour) == (1, 4)


@pytest.mark.django_db
def test_a_change_leaves_alone_what_a_run_has_written_meanwhile() -> None:
    job = due_job()
    run_due()
    job.priority = 5
    save_planned(job, ["priority"])
    job.refresh_from_db()
    assert job.last_message_id is not None
    assert job.priority == 5


@pytest.mark.django_db
def test_invalid_jobs_are_refused_with_reasons() -> None:
    make_queue("reports"), make_queue("_subscription/x", kind="subscription")
    add_periodic("nightly", HOURLY, "reports")
    with pytest.raises(PeriodicJobExists):
        add_periodic("nightly", HOURLY, "reports")
    with pytest.raises(QueueNotFound):
        add_periodic("other", HOURLY, "nowhere")
    with pytest.raises(PeriodicJobNotFound):
        get_periodic("other")
    wrong: dict[str, Any] = {"timezone": "Nowhere", "priority": 101, "max_attempts": 40_000, "payload": float("nan")}
    with pytest.raises(InvalidPeriodicJob) as refusal:
        add_periodic("other", "* * *", "_subscription/x", **wrong)
    assert refusal.value.problems.keys() == {"cron", "queue", *wrong}
    assert PeriodicJob.objects.count() == 1


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ({"a": "\0"}, "NUL"), ("\ud800", "cannot be written as JSON"), (float("inf"), "cannot be written as JSON"),
        (json.loads("[" * 61 + "]" * 61), "nested too deep"), ("x" * (17 << 20), "BROKER_MAX_FRAME"),
    ],
)  # fmt: skip
def test_a_payload_that_could_not_be_published_is_refused(payload: Any, reason: str) -> None:
    job = PeriodicJob(name="a", queue=make_queue(), cron=HOURLY, payload=payload)
    with pytest.raises(ValidationError) as refusal:
        job.full_clean()
    assert reason in " ".join(refusal.value.message_dict["payload"])


@pytest.mark.django_db
@pytest.mark.parametrize("payload", [None, {}, [], 0, "", "\\u0000", json.loads("[" * 60 + "]" * 60)])
def test_any_other_json_arrives_as_it_is(payload: Any) -> None:
    due_job(payload=payload)
    run_due()
    assert json.loads(bytes(Message.objects.get().payload)) == payload


# Several nodes.


class InThread(threading.Thread):
    """Runs a function on a connection of its own; `result` raises what it raised."""

    def __init__(self, function: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._function = function
        self._outcome: Any = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._outcome = self._function()
        except BaseException as error:
            self._error = error
        finally:
            connections.close_all()

    def result(self) -> Any:
        self.join(30)
        assert not self.is_alive()
        if self._error is not None:
            raise self._error
        return self._outcome


@pytest.fixture
def held_publish(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """The first publish says that it has begun and waits until it may go on."""
    begun, may_go_on = threading.Event(), threading.Event()
    publish = periodic._publish

    def hold(job: PeriodicJob, using: str) -> int | None:
        if not begun.is_set():
            begun.set()
            assert may_go_on.wait(20)
        return publish(job, using)

    monkeypatch.setattr(periodic, "_publish", hold)
    yield begun, may_go_on
    may_go_on.set()


@pytest.mark.django_db(transaction=True)
def test_a_run_in_one_nodes_hands_is_passed_over_by_the_others(
    held_publish: tuple[threading.Event, threading.Event],
) -> None:
    due_job()
    begun, may_go_on = held_publish
    first = InThread(run_due)
    assert begun.wait(20)
    second = InThread(run_due)
    assert second.result() == 0.0  # it is due still, as other transactions see it
    assert not Message.objects.exists()
    may_go_on.set()
    first.result()
    run_due()
    assert Message.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_nodes_that_look_at_the_same_time_publish_each_run_once() -> None:
    jobs = [due_job(f"job {n:02}", payload=n) for n in range(30)]
    barrier = threading.Barrier(2)

    def look() -> None:
        for _ in range(5):
            barrier.wait(20)
            run_due()

    for _ in range(3):
        for job in jobs:
            make_due(job)
        for thread in [InThread(look), InThread(look)]:
            thread.result()
    payloads = sorted(json.loads(bytes(message.payload)) for message in Message.objects.all())
    assert payloads == sorted(list(range(30)) * 3)


@pytest.mark.django_db(transaction=True)
def test_a_change_waits_for_a_run_under_way_and_does_not_repeat_it(
    held_publish: tuple[threading.Event, threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = due_job()
    begun, may_go_on = held_publish
    plan, ended = planning._next_run, []

    def plan_and_look(job: PeriodicJob) -> Any:
        ended.append(may_go_on.is_set())
        return plan(job)

    monkeypatch.setattr(planning, "_next_run", plan_and_look)
    running = InThread(run_due)
    assert begun.wait(20)
    job.cron = "30 4 29 2 *"
    saving = InThread(lambda: save_planned(job, ["cron"]))
    saving.join(0.2)
    assert saving.is_alive()
    may_go_on.set()
    running.result(), saving.result()
    run_due()
    job.refresh_from_db()
    assert (Message.objects.count(), job.cron) == (1, "30 4 29 2 *")
    assert ended == [True]  # the next run was counted from a time after the one under way
    assert job.last_message_id is not None


@pytest.mark.django_db(transaction=True)
def test_a_publish_that_is_lost_with_its_connection_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    job = due_job()
    planned = job.next_run_at
    publish = periodic._publish

    def lose_connection(job: PeriodicJob, using: str) -> int | None:
        id = publish(job, using)
        end_own_session()
        return id

    monkeypatch.setattr(periodic, "_publish", lose_connection)
    with pytest.raises(OperationalError):
        InThread(run_due).result()
    job.refresh_from_db()
    assert (job.next_run_at, job.last_run_at) == (planned, None)
    assert not Message.objects.exists()


def end_own_session() -> None:
    """As a restart of the server would."""
    with connection.cursor() as cursor:
        cursor.execute("select pg_terminate_backend(pg_backend_pid())")


@pytest.mark.django_db(transaction=True)
def test_nodes_are_told_of_jobs_that_may_be_due_earlier_and_of_no_others() -> None:
    make_queue("reports")
    with listening() as heard:
        job = add_periodic("nightly", RARE, "reports")
        assert heard.take("periodic") == [job.pk]
        add_periodic("off", HOURLY, "reports", enabled=False)
        assert heard.take("periodic") == []
        make_due(job)
        assert heard.take("periodic") == [job.pk]
        run_due()
        set_enabled(job, False)
        assert heard.take("periodic") == []
        set_enabled(job, True)
        assert heard.take("periodic") == [job.pk]


# The thread.


class Looks:
    """Counts what a scheduler does, and lets a test wait for it."""

    def __init__(self) -> None:
        self._looked = threading.Semaphore(0)
        self.failures: list[Exception] = []
        self.wait = 60.0

    def __call__(self, using: str) -> float:
        try:
            if self.failures:
                raise self.failures.pop(0)
            run_due(using)
            return self.wait
        finally:
            self._looked.release()

    def one_more(self) -> None:
        assert self._looked.acquire(timeout=20)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    counting = Looks()
    monkeypatch.setattr(periodic, "run_due", counting)
    return counting


@pytest.fixture
def scheduler(transactional_db: None, looks: Looks) -> Iterator[Scheduler]:
    one = Scheduler()
    yield one
    assert one.stop(20)


def test_the_scheduler_runs_what_is_due_and_looks_again_when_woken(scheduler: Scheduler, looks: Looks) -> None:
    job = due_job()
    scheduler.start()
    looks.one_more()
    assert Message.objects.count() == 1
    make_due(job)
    scheduler.wake()
    looks.one_more()
    assert Message.objects.count() == 2


def test_the_scheduler_looks_again_by_itself_when_the_wait_is_over_but_does_not_spin(
    scheduler: Scheduler, looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    wait = scheduler._woken.wait

    def note_and_wait(seconds: float) -> bool:
        waits.append(seconds)
        return wait(seconds)

    monkeypatch.setattr(scheduler._woken, "wait", note_and_wait)
    looks.wait = 0.0
    scheduler.start()
    for _ in range(3):
        looks.one_more()
    assert set(waits) == {periodic.SHORTEST_WAIT}


def test_a_session_that_ends_between_two_looks_goes_unnoticed(
    scheduler: Scheduler, looks: Looks, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job, publish, sessions = due_job(), periodic._publish, []

    def note_session_and_publish(job: PeriodicJob, using: str) -> int | None:
        with connection.cursor() as cursor:
            cursor.execute("select pg_backend_pid()")
            sessions.extend(cursor.fetchone())
        return publish(job, using)

    monkeypatch.setattr(periodic, "_publish", note_session_and_publish)
    scheduler.start()
    looks.one_more()
    with connection.cursor() as cursor:
        cursor.execute("select pg_terminate_backend(%s)", sessions)
    make_due(job)
    scheduler.wake()
    looks.one_more()
    assert Message.objects.count() == 2
    assert not [record for record in caplog.records if record.name == "queues.schedules.periodic"]


def test_the_scheduler_goes_on_after_the_database_was_away(
    scheduler: Scheduler, looks: Looks, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    due_job()
    publish = periodic._publish
    sessions = iter([end_own_session, end_own_session])

    def publish_after_two_losses(job: PeriodicJob, using: str) -> int | None:
        next(sessions, lambda: None)()
        return publish(job, using)

    monkeypatch.setattr(periodic, "_publish", publish_after_two_losses)
    with caplog.at_level(logging.WARNING, "queues.schedules.periodic"):
        scheduler.start()
        for _ in range(3):
            looks.one_more()
    assert Message.objects.count() == 1
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "wait for the database" in caplog.text


def test_the_scheduler_goes_on_after_a_fault_and_tells_it(
    scheduler: Scheduler, looks: Looks, caplog: pytest.LogCaptureFixture
) -> None:
    due_job()
    looks.failures = [KeyError("a fault")]
    scheduler.start()
    looks.one_more()
    looks.one_more()
    assert Message.objects.count() == 1
    assert "KeyError: 'a fault'" in caplog.text


def test_a_stopped_scheduler_looks_no_more(scheduler: Scheduler, looks: Looks) -> None:
    due_job()
    scheduler.start()
    looks.one_more()
    assert scheduler.stop(20)
    make_due(get_periodic("nightly"))
    scheduler.wake()
    assert Message.objects.count() == 1
    assert scheduler.stop()


def test_a_scheduler_that_never_began_can_be_stopped(scheduler: Scheduler) -> None:
    assert scheduler.stop(0)


def test_a_scheduler_that_hangs_is_not_waited_for_longer_than_asked(
    scheduler: Scheduler, held_publish: tuple[threading.Event, threading.Event]
) -> None:
    begun, may_go_on = held_publish
    due_job()
    scheduler.start()
    assert begun.wait(20)
    assert not scheduler.stop(0.01)
    may_go_on.set()
