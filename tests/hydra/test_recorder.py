"""Lines from IRC into a durable queue: each once whoever has it, in order, and none forgotten while it must wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from channels.db import database_sync_to_async

from hydra.models import Node, RecordedLine, SentLine
from hydra.recorder import Line, Recorder, is_recorded, record
from hydra.sentlines import begin_anew, claim, prepare_queue, prune, release, uses_this_database
from queues.api import QueueFull, QueueNotFound, publish
from queues.models import Message, Overflow, Queue
from queues.operations import create_queue

PATIENCE = 60.0
QUEUE = "hydra.recv"


def lines(*indexes: int, term: int = 3) -> list[Line]:
    return [(term, idx, f":a!b@c PRIVMSG #d :  line   {idx} ü") for idx in indexes]


def stored(queue: str = QUEUE) -> list[tuple[int, int, str]]:
    """What is in the queue, in order."""
    found = Message.objects.filter(queue__name=queue).order_by("id")
    headers = [each.headers or {} for each in found]
    texts = [bytes(each.payload).decode() for each in found]
    return [(has["hydra.term"], has["hydra.idx"], text) for has, text in zip(headers, texts, strict=True)]


def make_node(name: str, voter: int = 0xAA) -> None:
    Node.objects.create(name=name, voter=f"{voter:016x}")


# In one transaction.


@pytest.mark.django_db(transaction=True)
class TestRecording:
    def test_a_line_is_published_as_it_is_with_its_term_and_index(self) -> None:
        create_queue(QUEUE)
        make_node("alpha")
        assert record(QUEUE, "alpha", lines(0, 1)) == 2
        assert stored() == lines(0, 1)
        assert is_recorded(QUEUE, 3, 1)
        assert not is_recorded(QUEUE, 3, 2)

    def test_a_line_that_several_nodes_have_is_published_once(self) -> None:
        create_queue(QUEUE)
        make_node("alpha")
        make_node("beta", 0xBB)
        assert record(QUEUE, "alpha", lines(0, 1, 2)) == 3
        assert record(QUEUE, "beta", lines(1, 2, 3)) == 1
        assert record(QUEUE, "alpha", lines(3)) == 0
        assert stored() == lines(0, 1, 2, 3)

    def test_the_same_index_of_another_term_is_another_line(self) -> None:
        create_queue(QUEUE)
        make_node("alpha")
        assert record(QUEUE, "alpha", [*lines(0), *lines(0, term=4)]) == 2
        assert stored() == [*lines(0), *lines(0, term=4)]

    def test_two_queues_have_the_line_each(self) -> None:
        create_queue(QUEUE)
        create_queue("other")
        assert record(QUEUE, "alpha", lines(0)) == record("other", "beta", lines(0)) == 1

    def test_the_position_goes_with_the_lines_also_if_others_have_stored_them(self) -> None:
        create_queue(QUEUE)
        make_node("alpha")
        make_node("beta", 0xBB)
        record(QUEUE, "alpha", lines(0, 1))
        record(QUEUE, "beta", lines(0, 1))
        assert set(Node.objects.values_list("name", "position_term", "position_idx")) == {
            ("alpha", 3, 1), ("beta", 3, 1),
        }  # fmt: skip

    def test_a_full_queue_takes_nothing_and_nothing_is_noted(self) -> None:
        create_queue(QUEUE, max_length=1, overflow=Overflow.REJECT)
        make_node("alpha")
        with pytest.raises(QueueFull):
            record(QUEUE, "alpha", lines(0, 1))
        assert stored() == []
        assert not is_recorded(QUEUE, 3, 0)
        assert Node.objects.get().position_term is None

    def test_a_queue_that_is_not_there_is_said(self) -> None:
        with pytest.raises(QueueNotFound):
            record(QUEUE, "alpha", lines(0))
        assert not is_recorded(QUEUE, 3, 0)


# Without waiting.


class Slow:
    """A database that does what it is told, and when."""

    def __init__(self) -> None:
        self.ready = asyncio.Event()
        self.ready.set()
        self.troubles: list[Exception] = []
        self.recorded: list[Line] = []
        self.present: set[tuple[int, int]] = set()
        self.batches = 0
        self.stopped = False

    async def run(self, function: Callable[..., Any], queue: str, *args: Any) -> Any:
        if function is is_recorded:
            return tuple(args) in self.present
        self.batches += 1
        await self.ready.wait()
        if self.troubles:
            raise self.troubles.pop(0)
        batch = args[1]
        self.recorded += batch
        self.present |= {line[:2] for line in batch}
        return len(batch)

    async def stop(self) -> None:
        self.stopped = True


class Recording:
    """A recorder, its database and what it has told."""

    def __init__(self) -> None:
        self.happened: list[tuple[str, str]] = []
        self.recorder = Recorder(QUEUE, "alpha", lambda *what: self.happened.append(what))
        self.database = Slow()
        self.recorder._database = self.database  # type: ignore[assignment]

    def take(self, *given: Line) -> None:
        for line in given:
            self.recorder.take(*line)

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await asyncio.sleep(0.001)


@pytest.fixture
async def recording(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Recording]:
    monkeypatch.setattr("hydra.recorder.FIRST_RETRY", 0.001)
    recording = Recording()
    yield recording
    recording.database.ready.set()
    await recording.recorder.stop(0)


async def test_lines_that_come_meanwhile_are_stored_together_and_in_order(recording: Recording) -> None:
    recording.database.ready.clear()
    recording.take(*lines(0))
    await recording.until(lambda: recording.database.batches)
    recording.take(*lines(1, 2, 3))
    recording.database.ready.set()
    await recording.until(lambda: len(recording.database.recorded) == 4)
    assert recording.database.recorded == lines(0, 1, 2, 3)
    assert recording.database.batches == 2


async def test_lines_wait_while_the_database_is_away_and_that_is_said_once(recording: Recording) -> None:
    recording.database.troubles = [ConnectionError("away"), ConnectionError("away"), QueueFull("full")]
    recording.take(*lines(0, 1))
    await recording.until(lambda: recording.database.recorded)
    assert recording.database.recorded == lines(0, 1)
    assert recording.happened == [("lines wait", f"{QUEUE}: away"), ("lines wait", f"{QUEUE}: The queue is full: full")]


async def test_a_line_that_cannot_be_stored_for_an_unforeseen_reason_is_given_up_alone(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = recording.database.run

    async def choosy(function: Callable[..., Any], queue: str, *args: Any) -> Any:
        if function is not is_recorded and any(line[1] == 5 for line in args[1]):
            raise ValueError("unforeseen")
        return await run(function, queue, *args)

    monkeypatch.setattr(recording.database, "run", choosy)
    recording.take(*lines(*range(12)))
    await recording.until(lambda: len(recording.database.recorded) == 11)
    assert recording.database.recorded == lines(*(idx for idx in range(12) if idx != 5))
    assert [what for what in recording.happened if what[0] == "fault"] == [
        ("fault", "hydra.recv: term 3, 5 was given up: ValueError: unforeseen")
    ]


async def test_the_first_line_of_a_newcomer_waits_for_the_one_before_it(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hydra.recorder.PREDECESSOR", 3600.0)
    recording.take(*lines(5, 6))
    await asyncio.sleep(0.02)
    assert recording.database.recorded == []
    recording.database.present.add((3, 4))
    await recording.until(lambda: recording.database.recorded)
    assert recording.database.recorded == lines(5, 6)


async def test_a_newcomer_does_not_wait_for_ever(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hydra.recorder.PREDECESSOR", 0.01)
    recording.take(*lines(5))
    await recording.until(lambda: recording.database.recorded)


async def test_the_oldest_lines_are_given_up_and_no_others_when_too_many_wait(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hydra.recorder.MAX_WAITING", 3)
    recording.database.ready.clear()
    recording.take(*lines(0, 1))
    await recording.until(lambda: recording.database.batches)  # with these two
    recording.take(*lines(2, 3, 4))
    assert [kind for kind, _ in recording.happened] == ["line lost", "line lost"]
    recording.database.ready.set()
    await recording.until(lambda: len(recording.database.recorded) == 5)
    assert recording.database.recorded == lines(0, 1, 2, 3, 4)
    await recording.recorder.stop(PATIENCE)


async def test_what_waits_is_stored_before_the_end(recording: Recording) -> None:
    recording.take(*lines(*range(2500)))
    await recording.recorder.stop(PATIENCE)
    assert len(recording.database.recorded) == 2500
    assert recording.database.stopped


async def test_a_database_that_does_not_answer_does_not_hold_up_the_end(recording: Recording) -> None:
    recording.database.ready.clear()
    recording.take(*lines(0))
    await recording.recorder.stop(0.01)
    assert recording.database.recorded == []


@pytest.mark.django_db(transaction=True)
async def test_lines_arrive_in_a_real_queue() -> None:
    await database_sync_to_async(create_queue)(QUEUE)
    recorder = Recorder(QUEUE, "alpha", lambda *what: None)
    for line in lines(0, 1, 2):
        recorder.take(*line)
    await recorder.stop(PATIENCE)
    assert await database_sync_to_async(stored)() == lines(0, 1, 2)


# Messages that were sent.


@pytest.mark.django_db(transaction=True)
class TestSentLines:
    def test_a_message_is_claimed_once(self) -> None:
        assert claim(7)
        assert not claim(7)
        release(7)
        assert claim(7)

    def test_the_queues_are_made_once_and_lines_from_irc_do_not_pile_up_for_ever(self) -> None:
        prepare_queue(QUEUE, 10)
        prepare_queue(QUEUE, 20)
        queue = Queue.objects.get(name=QUEUE)
        assert (queue.max_length, queue.overflow) == (10, Overflow.DROP_OLDEST)

    def test_a_queue_that_cannot_be_is_refused(self) -> None:
        with pytest.raises(ValueError, match="There can be no queue '_mine'"):
            prepare_queue("_mine")

    def test_another_node_that_makes_the_queue_at_the_same_time_is_no_error(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def faster(name: str, **policy: Any) -> Queue:
            create_queue(name)
            return create_queue(name, **policy)

        monkeypatch.setattr("hydra.sentlines.create_queue", faster)
        prepare_queue(QUEUE)
        assert Queue.objects.filter(name=QUEUE).count() == 1

    def test_old_records_are_forgotten_but_not_of_messages_that_may_come_again(self) -> None:
        create_queue("hydra.send")
        waiting = publish("hydra.send", b"PRIVMSG #a :x")
        assert waiting is not None
        old = "update hydra_sentline set sent_at = now() - interval '2 days'"
        for message in (waiting, 10**15):
            claim(message)
        record_old(old)
        claim(10**15 + 1)
        create_queue(QUEUE)
        record(QUEUE, "alpha", lines(0))
        record_old("update hydra_recordedline set recorded_at = now() - interval '2 days'")
        record(QUEUE, "alpha", lines(1))
        prune()
        assert set(SentLine.objects.values_list("message", flat=True)) == {waiting, 10**15 + 1}
        assert list(RecordedLine.objects.values_list("idx", flat=True)) == [1]

    def test_a_network_that_is_founded_anew_forgets_the_lines_of_the_last_one(self) -> None:
        create_queue(QUEUE)
        make_node("alpha")
        record(QUEUE, "alpha", lines(0))
        make_node("beta", 0xBB)
        begin_anew(QUEUE, "alpha")
        assert is_recorded(QUEUE, 3, 0)
        Node.objects.get(name="beta").delete()
        begin_anew(QUEUE, "alpha")
        assert not is_recorded(QUEUE, 3, 0)

    def test_a_leader_with_a_row_here_uses_this_database(self) -> None:
        make_node("alpha", 0xAA)
        assert uses_this_database(f"{0xAA:016x}")
        assert not uses_this_database(f"{0xBB:016x}")
        assert not uses_this_database(None)


def record_old(statement: str) -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(statement)
