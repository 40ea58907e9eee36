"""Starts of ETL runs: scheduled, each once over all that look; by an operator's hand; again when they were lost."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from django.db import connection, transaction
from django.db.models.functions import Now
from django.utils import timezone

from queues.etl import runs, schedules
from queues.etl.errors import OutputBusy
from queues.etl.options import RunOptions
from queues.models import EtlRun, EtlSchedule, EtlState, Message
from queues.schedules.planning import PlannedNotFound, Unplannable, save_planned, set_enabled
from tests.queues.etl.conftest import hourly
from tests.queues.etl.workers import forget_connections
from tests.queues.store import another_connection


@pytest.fixture(autouse=True)
def output(settings, tmp_path: Path) -> None:
    settings.ETL_OUTPUT = str(tmp_path)


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The runs whose tasks were published, none of which leaves this process."""
    numbers: list[int] = []
    monkeypatch.setattr(schedules, "publish_task", lambda run: numbers.append(run.pk))
    return numbers


@pytest.fixture
def broker(transactional_db: None) -> Iterator[None]:
    forget_connections()
    yield
    forget_connections()


def make_schedule(name: str = "hourly", cron: str = "", due: bool = False, **fields: object) -> EtlSchedule:
    schedule = EtlSchedule(name=name, cron=cron or hourly(), **{"timezone": "Europe/Berlin", **fields})
    save_planned(schedule)
    if due:
        EtlSchedule.objects.filter(pk=schedule.pk).update(next_run_at=Now() - timedelta(hours=3))
    schedule.refresh_from_db()
    return schedule


def end(run: EtlRun, state: EtlState = EtlState.SUCCEEDED, **fields: object) -> None:
    EtlRun.objects.filter(pk=run.pk).update(state=state, ended_at=Now(), **fields)


def lose(run: EtlRun) -> None:
    """A run without a supervisor, though its row says so."""
    EtlRun.objects.filter(pk=run.pk).update(
        state=EtlState.RUNNING, started_at=Now(), heartbeat_at=Now() - timedelta(hours=1), host="elsewhere", pid=1
    )


@pytest.mark.django_db
class TestByTheClock:
    def test_a_schedule_that_is_due_begins_one_run_whatever_it_has_missed(self, published: list[int]) -> None:
        schedule = make_schedule(due=True, bodies="json", body_schema="total DOUBLE", verify=False)
        [run] = schedules.run_due()
        assert published == [run.pk]
        assert (run.state, run.trigger) == (EtlState.QUEUED, "schedule hourly")
        assert run.options == {"since": None, "bodies": "json", "body_schema": "total DOUBLE", "verify": "none"}
        schedule.refresh_from_db()
        assert schedule.last_run == run
        assert schedule.next_run_at is not None
        assert timedelta() < schedule.next_run_at - timezone.now() <= timedelta(hours=1)
        assert schedules.run_due() == []

    def test_nothing_begins_before_its_time_or_when_it_is_disabled(self, published: list[int]) -> None:
        make_schedule("later")
        make_schedule("off", enabled=False)
        assert schedules.run_due() == []
        assert published == []

    def test_a_run_that_lasts_is_not_overtaken_and_the_schedule_says_so(self, published: list[int]) -> None:
        schedule = make_schedule(due=True)
        busy = runs.create(trigger="shell")
        assert schedules.run_due() == []
        schedule.refresh_from_db()
        where = f"run {busy.pk} into {busy.output}"
        assert schedule.last_error == f"Skipped: Another run writes to this output: {where}"
        assert schedule.next_run_at is not None
        assert schedule.next_run_at > timezone.now()
        end(busy)
        EtlSchedule.objects.update(next_run_at=Now())
        assert len(schedules.run_due()) == 1
        schedule.refresh_from_db()
        assert schedule.last_error == ""

    def test_the_first_of_two_that_are_due_begins_and_the_other_is_skipped(self, published: list[int]) -> None:
        make_schedule("one", due=True), make_schedule("two", due=True)
        assert len(schedules.run_due()) == 1
        errors = EtlSchedule.objects.values_list("last_error", flat=True)
        assert sorted(bool(error) for error in errors) == [False, True]

    def test_one_that_cannot_be_planned_says_why_and_holds_up_no_other(self, published: list[int]) -> None:
        make_schedule("odd", due=True), make_schedule("even", due=True)
        EtlSchedule.objects.filter(name="odd").update(cron="nonsense", next_run_at=None)
        assert [run.trigger for run in schedules.run_due()] == ["schedule even"]
        odd = EtlSchedule.objects.get(name="odd")
        assert odd.next_run_at is None
        assert odd.last_error.startswith("It cannot be planned. It has 1 field")

    def test_one_that_was_never_planned_is_planned_and_not_begun(self, published: list[int]) -> None:
        EtlSchedule.objects.create(name="made in SQL", cron=hourly())
        assert schedules.run_due() == []
        planned = EtlSchedule.objects.get().next_run_at
        assert planned is not None
        assert planned > timezone.now()

    def test_the_time_zone_counts(self) -> None:
        schedule = make_schedule(cron="30 3 * * *", timezone="Asia/Tokyo")
        assert schedule.next_run_at is not None
        assert schedule.next_run_at.astimezone(UTC).strftime("%H:%M") == "18:30"


def test_many_that_look_at_once_begin_each_run_once(transactional_db: None, published: list[int]) -> None:
    make_schedule(due=True)
    barrier = threading.Barrier(4)
    begun: list[EtlRun] = []

    def look() -> None:
        try:
            barrier.wait()
            begun.extend(schedules.run_due())
        finally:
            connection.close()

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(begun) == 1
    assert EtlRun.objects.count() == 1
    assert EtlSchedule.objects.get().last_error == ""


def test_a_locked_schedule_holds_up_no_other(transactional_db: None, published: list[int]) -> None:
    make_schedule("one", due=True)
    with another_connection() as other:
        other.execute("select from queues_etlschedule for update")
        make_schedule("two", due=True)
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("set local lock_timeout = '5s'")
            assert [run.trigger for run in schedules.run_due()] == ["schedule two"]


def test_the_task_leaves_with_the_transaction(broker: None) -> None:
    schedule = make_schedule()

    def give_up() -> None:
        with transaction.atomic():
            schedules.run_now(schedule, "alice")
            raise KeyError

    with pytest.raises(KeyError):
        give_up()
    assert (EtlRun.objects.count(), Message.objects.count()) == (0, 0)
    with transaction.atomic():
        run = schedules.run_now(schedule, "alice")
    message = Message.objects.select_related("queue").get()
    assert message.queue.name == "fivewire"
    assert json.loads(bytes(message.payload))[0] == [run.pk]
    assert run.trigger == "alice, schedule hourly"


@pytest.mark.django_db
class TestByHand:
    def test_run_now_leaves_the_schedule_as_it_is(self, published: list[int]) -> None:
        schedule = make_schedule()
        planned = schedule.next_run_at
        run = schedules.run_now(schedule, "alice")
        schedule.refresh_from_db()
        assert (schedule.next_run_at, schedule.last_run, published) == (planned, run, [run.pk])

    def test_run_now_is_refused_while_another_run_lasts(self, published: list[int]) -> None:
        schedule = make_schedule()
        first = schedules.run_now(schedule, "alice")
        with pytest.raises(OutputBusy, match=f"run {first.pk} into"):
            schedules.run_now(schedule, "bob")
        assert published == [first.pk]

    def test_a_deleted_schedule_is_not_run_or_changed(self, published: list[int]) -> None:
        schedule = make_schedule()
        EtlSchedule.objects.all().delete()
        with pytest.raises(PlannedNotFound, match="There is no ETL schedule 'hourly' any more"):
            schedules.run_now(schedule, "alice")
        with pytest.raises(PlannedNotFound):
            save_planned(schedule, ("cron",))
        assert published == []

    def test_again_means_with_the_same_options(self, published: list[int]) -> None:
        since = datetime(2026, 1, 2, tzinfo=UTC)
        first = schedules.launch(RunOptions(since=since, bodies="raw", verify="none"), "alice")
        end(first)
        again = schedules.run_again(first, "bob")
        assert again.options == first.options
        assert again.trigger == f"bob, again as run {first.pk}"

    def test_disabling_forgets_the_next_run_and_enabling_plans_it(self) -> None:
        schedule = make_schedule()
        set_enabled(schedule, False)
        schedule.refresh_from_db()
        assert schedule.next_run_at is None
        set_enabled(schedule, True)
        schedule.refresh_from_db()
        assert schedule.next_run_at is not None

    def test_an_invalid_schedule_is_not_saved(self) -> None:
        schedule = make_schedule()
        before = schedule.cron
        schedule.cron = "0 0 30 2 *"
        with pytest.raises(Unplannable, match=r"'hourly' cannot be planned\. It never comes true"):
            save_planned(schedule, ("cron",))
        schedule.refresh_from_db()
        assert schedule.cron == before


@pytest.mark.django_db
class TestLostRuns:
    def test_a_lost_run_is_done_again_and_its_restart_is_not(self, published: list[int]) -> None:
        first = schedules.launch(RunOptions(verify="none"), "schedule hourly")
        lose(first)
        [again] = schedules.restart_lost()
        first.refresh_from_db()
        assert (first.state, again.restart_of) == (EtlState.LOST, first)
        assert again.options == first.options
        assert published == [first.pk, again.pk]
        lose(again)
        assert schedules.restart_lost() == []
        again.refresh_from_db()
        assert again.state == EtlState.LOST

    def test_a_lost_run_into_another_output_is_done_again_into_that_and_once(self, published: list[int]) -> None:
        lose(runs.create(RunOptions(bodies="raw", verify="none"), output="/elsewhere"))
        [again] = schedules.restart_lost()
        assert (again.output, again.options["bodies"]) == ("/elsewhere", "raw")
        EtlRun.objects.filter(pk=again.pk).update(output="/elsewhere/moved")
        end(again)
        assert schedules.restart_lost() == []

    def test_again_is_into_the_same_output(self, published: list[int]) -> None:
        first = runs.create(RunOptions(verify="none"), output="/elsewhere")
        end(first)
        assert schedules.run_again(first, "alice").output == "/elsewhere"

    def test_one_that_others_have_found_lost_is_done_again(self, published: list[int]) -> None:
        lose(schedules.launch(RunOptions(), "alice"))
        [lost] = runs.recover()
        [again] = schedules.restart_lost()
        assert again.restart_of == lost

    def test_one_that_a_later_run_has_followed_is_left(self, published: list[int]) -> None:
        lose(schedules.launch(RunOptions(), "alice"))
        runs.recover()
        end(schedules.launch(RunOptions(), "bob"))
        assert schedules.restart_lost() == []

    def test_one_that_was_cancelled_is_left(self, published: list[int]) -> None:
        run = schedules.launch(RunOptions(), "alice")
        lose(run)
        EtlRun.objects.update(cancelling=True)
        assert schedules.restart_lost() == []
        run.refresh_from_db()
        assert run.state == EtlState.CANCELLED

    def test_one_that_was_lost_long_ago_is_left(self, published: list[int]) -> None:
        run = schedules.launch(RunOptions(), "alice")
        end(run, EtlState.LOST)
        EtlRun.objects.update(ended_at=Now() - timedelta(days=2))
        assert schedules.restart_lost() == []

    def test_one_that_is_looked_after_is_left(self, published: list[int]) -> None:
        run = schedules.launch(RunOptions(), "alice")
        lose(run)
        EtlRun.objects.update(heartbeat_at=Now())
        assert schedules.restart_lost() == []
        run.refresh_from_db()
        assert run.state == EtlState.RUNNING
