"""Records of lines: each line from IRC is published once, each line for IRC is claimed once."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection

from hydra.models import Node, RecordedLine, SentLine
from hydra.storage.line_records import (
    claim,
    forget_recorded,
    has_node,
    is_recorded,
    prepare_queue,
    prune,
    record,
    release,
)
from queues.api import QueueFull, QueueNotFound, publish
from queues.models import Overflow, Queue
from queues.operations.queues import create_queue
from tests.hydra.rows import QUEUE, lines, stored


def make_node(name: str, voter: int = 0xAA) -> None:
    Node.objects.create(name=name, voter=f"{voter:016x}")


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

        monkeypatch.setattr("hydra.storage.line_records.create_queue", faster)
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
        forget_recorded(QUEUE, "alpha")
        assert is_recorded(QUEUE, 3, 0)
        Node.objects.get(name="beta").delete()
        forget_recorded(QUEUE, "alpha")
        assert not is_recorded(QUEUE, 3, 0)

    def test_a_leader_with_a_row_here_has_node(self) -> None:
        make_node("alpha", 0xAA)
        assert has_node(f"{0xAA:016x}")
        assert not has_node(f"{0xBB:016x}")
        assert not has_node(None)


def record_old(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)
