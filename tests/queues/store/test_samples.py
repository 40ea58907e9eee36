"""The history of queues: a sample a minute, one an hour after a day, nothing after a month."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection
from django.db.models import F
from django.utils import timezone
from pytest_django.fixtures import DjangoAssertNumQueries

from queues.models import QueueSample, SampleMark, State
from queues.operations import messages as message_operations
from queues.operations import queues as queue_operations
from queues.store.samples import ALL_QUEUES, SPANS, Sampler, read_series, take_sample, thin_samples
from tests.queues.store import another_connection, make_queue, store

pytestmark = pytest.mark.django_db

#: A consumer has acknowledged messages, or somebody has purged them.
ACKNOWLEDGED, PURGED = (
    f"insert into queues_queuetally (queue_id, ready, settled, completed) values (%s, -2, 2, {n})" for n in (2, 0)
)
TURN = "select pg_advisory_xact_lock(hashtext('queues_samples'))"


def pass_minutes(minutes: int = 1) -> None:
    """Let what was written until now be so much older."""
    SampleMark.objects.update(at=F("at") - timedelta(minutes=minutes))
    QueueSample.objects.update(at=F("at") - timedelta(minutes=minutes))


def samples(queue: int) -> list[QueueSample]:
    return list(QueueSample.objects.filter(queue=queue).order_by("at"))


def test_the_first_sample_is_what_the_second_is_compared_with() -> None:
    queue = make_queue()
    store(queue, count=5)
    take_sample()
    assert not QueueSample.objects.exists()
    pass_minutes()
    store(queue, count=2)
    store(queue, State.DEAD, 3)
    take_sample()
    [sample] = samples(queue.pk)
    assert (sample.published, sample.settled, sample.died) == (5, 0, 3)
    assert (sample.ready, sample.dead, sample.peak, round(sample.seconds)) == (7, 3, 7, 60)
    [total] = samples(ALL_QUEUES)
    assert (total.published, total.ready, total.died) == (5, 7, 3)
    assert total.database_bytes is not None
    assert total.database_bytes > 1_000_000


def test_a_new_installation_notes_what_comes_in_its_first_minute(migrated_database: dict[str, Any]) -> None:
    with psycopg.connect(**migrated_database) as database:
        marks = database.execute("select queue, dead, published from queues_samplemark").fetchall()
    assert marks == [(ALL_QUEUES, 0, 0)]
    SampleMark.objects.create(
        queue=ALL_QUEUES, at=timezone.now() - timedelta(minutes=1), ready=0, leased=0, delayed=0, dead=0, published=0,
        settled=0,
    )  # fmt: skip
    store(queue := make_queue(), State.DEAD, 3)
    take_sample()
    assert [sample.died for sample in samples(queue.pk)] == [3]


def test_only_queues_that_changed_have_a_row_and_all_queues_together_always_do() -> None:
    quiet, busy = make_queue("quiet"), make_queue("busy")
    store(quiet)
    take_sample()
    for _ in range(3):
        pass_minutes()
        store(busy)
        take_sample()
    pass_minutes()
    take_sample()
    assert (len(samples(quiet.pk)), len(samples(busy.pk)), len(samples(ALL_QUEUES))) == (0, 3, 4)


def test_leaving_messages_are_counted_and_a_new_queue_counts_from_its_beginning() -> None:
    take_sample()
    pass_minutes()
    queue = make_queue("new")
    store(queue, count=4)
    message_operations.purge("new")
    take_sample()
    [sample] = samples(queue.pk)
    assert (sample.published, sample.settled, sample.ready) == (4, 4, 0)


def test_a_minute_is_sampled_once_whichever_node_comes_again() -> None:
    queue = make_queue()
    take_sample()
    pass_minutes()
    store(queue)
    assert take_sample() == 2
    store(queue)
    assert take_sample() == 0
    assert [sample.published for sample in samples(queue.pk)] == [1]
    pass_minutes()
    take_sample()
    assert [sample.published for sample in samples(queue.pk)] == [1, 1]


def test_a_node_leaves_the_sample_to_one_that_is_at_it() -> None:
    with another_connection() as other:
        other.execute(TURN)
        take_sample(), thin_samples()
        assert not SampleMark.objects.exists()
        other.rollback()
        take_sample()
        assert SampleMark.objects.exists()


def test_the_sample_after_missed_minutes_says_how_long_it_covers() -> None:
    queue = make_queue()
    take_sample()
    pass_minutes(10)
    store(queue, count=60)
    take_sample()
    [sample] = samples(queue.pk)
    assert (sample.published, round(sample.seconds)) == (60, 600)
    series = read_series([queue.pk], SPANS["hour"], sample.at.timestamp() + 1)[queue.pk]
    assert series.incoming[-1] == pytest.approx(0.1, abs=0.001)
    assert series.incoming[-5:-1] == [None] * 4, "no sample was taken in these minutes"


def test_counts_that_went_back_are_no_negative_rates() -> None:
    queue = make_queue()
    store(queue, count=5)
    take_sample()
    SampleMark.objects.filter(queue=queue.pk).update(published=100, settled=100, dead=100)
    pass_minutes()
    take_sample()
    [sample] = samples(queue.pk)
    assert (sample.published, sample.settled, sample.died) == (0, 0, 0)


def sample(queue: int, hours_ago: float, **fields: int) -> QueueSample:
    values = dict.fromkeys(("ready", "leased", "delayed", "dead", "peak", "published", "settled", "died"), 0)
    at = timezone.now().replace(second=0, microsecond=0) - timedelta(hours=hours_ago)
    return QueueSample.objects.create(queue=queue, at=at, seconds=60, **values | fields)


def test_after_a_day_an_hour_is_one_row_with_its_peak() -> None:
    queue = make_queue().pk
    hour = timezone.now().replace(minute=0, second=0, microsecond=0) - timedelta(hours=30)
    for minute, ready, peak in ((1, 5, 5), (30, 90, 95), (60, 7, 7)):
        made = sample(queue, 0, ready=ready, peak=peak, published=10, settled=4, died=1)
        QueueSample.objects.filter(pk=made.pk).update(at=hour + timedelta(minutes=minute))
    recent = sample(queue, 1, published=1)
    assert thin_samples() == 1
    old, kept = samples(queue)
    assert kept == recent
    assert (old.at, old.hourly, old.seconds) == (hour + timedelta(hours=1), True, 180)
    assert (old.ready, old.peak, old.published, old.settled, old.died) == (7, 95, 30, 12, 3)
    assert thin_samples() == 0, "an hour is made once"


def test_samples_older_than_a_month_or_of_deleted_queues_are_dropped(
    settings: Any
) -> None:
    queue, gone = make_queue(), make_queue("gone")
    sample(queue.pk, 24 * 32), sample(ALL_QUEUES, 24 * 32), sample(gone.pk, 1)
    sample(queue.pk, 24 * 30)
    queue_operations.delete_queue("gone")
    thin_samples()
    [left] = QueueSample.objects.all()
    assert (left.queue, left.hourly) == (queue.pk, True)
    settings.BROKER_HISTORY_DAYS = 7
    thin_samples()
    assert not QueueSample.objects.exists()


def test_a_queue_that_is_gone_is_compared_with_no_more() -> None:
    queue = make_queue()
    take_sample()
    assert SampleMark.objects.filter(queue=queue.pk).exists()
    queue_operations.delete_queue("orders")
    pass_minutes()
    take_sample()
    assert list(SampleMark.objects.values_list("queue", flat=True)) == [ALL_QUEUES]


def test_a_period_in_which_nothing_changed_keeps_the_depth_before_it() -> None:
    queue = make_queue().pk
    sample(queue, 2, ready=40, dead=2)
    for minutes in (3, 2, 1):
        sample(ALL_QUEUES, minutes / 60)
    sample(queue, 2 / 60, ready=50, published=120)
    series = read_series([queue], SPANS["hour"], time.time())[queue]
    last = [value for value in zip(series.ready, series.incoming, series.dead, strict=True) if value[1] is not None]
    assert last == [(40, 0, 2), (50, 2, 0), (50, 0, 0)]


def test_all_series_of_a_page_are_one_query(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    ids = [make_queue(f"q{n}").pk for n in range(3)]
    with django_assert_num_queries(1):
        assert set(read_series(ids, SPANS["month"], time.time())) == set(ids)


def test_without_history_nothing_is_written(settings: Any, transactional_db: None) -> None:
    settings.BROKER_HISTORY_DAYS = 0
    Sampler()()
    assert not SampleMark.objects.exists()
    settings.BROKER_HISTORY_DAYS = 31
    Sampler()()
    assert SampleMark.objects.exists()


def test_clients_with_many_queues_do_not_decide_how_many_rows_a_minute_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queues.store.samples.MAX_QUEUES", 1)
    few, many = make_queue("few"), make_queue("many")
    take_sample()
    pass_minutes()
    store(few, count=2)
    store(many, count=3)
    take_sample()
    assert (len(samples(few.pk)), len(samples(many.pk))) == (0, 1)
    [total] = samples(ALL_QUEUES)
    assert total.published == 5


@pytest.mark.parametrize(("change", "completed"), [(ACKNOWLEDGED, 2), (PURGED, 0)])
def test_what_consumers_acknowledged_is_told_from_what_was_purged(change: str, completed: int) -> None:
    queue = make_queue()
    store(queue, count=5)
    take_sample()
    SampleMark.objects.update(completed=None)  # as a version that did not know it has left it
    for _ in range(2):
        pass_minutes()
        with connection.cursor() as cursor:
            cursor.execute(change, [queue.pk])
        take_sample()
    assert [(one.settled, one.completed) for one in samples(queue.pk)] == [(2, 0), (2, completed)]
