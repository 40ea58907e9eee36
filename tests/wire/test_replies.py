"""Replies of one connection: in order, none before what was published earlier on it is committed."""

from __future__ import annotations

from typing import Any, cast

import pytest

from queues.engine.api import Engine
from wire.replies import Parts, Replies


class FakeEngine:
    """An engine in which the test commits."""

    def __init__(self) -> None:
        self.committed = 0
        self.settled = 0
        self.behind = False
        self.holders: list[Replies] = []

    def holds(self, batch: int) -> bool:
        return batch > self.committed

    def settles(self, round: int) -> bool:
        return round > self.settled

    def hold(self, holder: Any) -> None:
        assert holder not in self.holders
        self.holders.append(holder)

    def unhold(self, holder: Any) -> None:
        self.holders.remove(holder)

    def commit(self, batch: int) -> None:
        self.committed = batch
        self.progress()

    def progress(self) -> None:
        for holder in tuple(self.holders):
            holder.release()


class Sink:
    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write_parts(self, parts: Parts) -> None:
        self.written.append(b"".join(parts))

    def failed(self, where: str) -> None:
        pytest.fail(f"failed in {where}")


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def sink() -> Sink:
    return Sink()


@pytest.fixture
def replies(engine: FakeEngine, sink: Sink) -> Replies:
    return Replies(cast(Engine, engine), sink)


def waits(replies: Replies) -> bool:
    return replies.waiting


def say(replies: Replies, *words: bytes, barrier: bool = False) -> None:
    for word in words:
        replies.begin(barrier).append(word)


def test_replies_that_follow_no_publish_leave_together_at_the_flush(
    replies: Replies, sink: Sink, engine: FakeEngine
) -> None:
    say(replies, b"a", b"b")
    say(replies, b"c", barrier=True)
    assert sink.written == []
    replies.flush()
    assert sink.written == [b"abc"]
    assert engine.holders == []
    replies.flush()
    assert sink.written == [b"abc"]


def test_a_reply_behind_a_publish_waits_for_its_commit(replies: Replies, sink: Sink, engine: FakeEngine) -> None:
    say(replies, b"before")
    replies.follow_batch(1)
    say(replies, b"after")
    replies.flush()
    assert sink.written == [b"before"]
    assert waits(replies)
    engine.commit(1)
    assert sink.written == [b"before", b"after"]
    assert not waits(replies)
    assert engine.holders == []


def test_each_reply_waits_for_its_own_batch_and_the_order_stays(
    replies: Replies, sink: Sink, engine: FakeEngine
) -> None:
    for batch, word in ((1, b"a"), (1, b"b"), (2, b"c"), (3, b"d")):
        replies.follow_batch(batch)
        say(replies, word)
    replies.flush()
    engine.commit(1)
    assert sink.written == [b"ab"]
    assert engine.holders == [replies]
    engine.commit(3)
    assert sink.written == [b"ab", b"cd"]


def test_a_later_reply_overtakes_none_even_if_it_would_not_have_to_wait(
    replies: Replies, sink: Sink, engine: FakeEngine
) -> None:
    replies.follow_batch(1)
    say(replies, b"first")
    replies.flush()
    engine.committed = 1  # committed, and not told yet
    say(replies, b"second")
    replies.flush()
    assert sink.written == []
    engine.progress()
    assert sink.written == [b"firstsecond"]


def test_replies_of_several_reads_are_held_once(replies: Replies, sink: Sink, engine: FakeEngine) -> None:
    replies.follow_batch(1)
    for word in (b"a", b"b"):
        say(replies, word)
        replies.flush()
    assert engine.holders == [replies]
    engine.commit(1)
    assert sink.written == [b"ab"]
    replies.follow_batch(2)
    say(replies, b"c")
    replies.flush()
    assert engine.holders == [replies]


def test_a_barrier_waits_for_the_acknowledgements_too(replies: Replies, sink: Sink, engine: FakeEngine) -> None:
    engine.behind = True
    say(replies, b"plain")
    say(replies, b"barrier", barrier=True)
    say(replies, b"after")
    replies.flush()
    assert sink.written == [b"plain"]
    engine.progress()
    assert sink.written == [b"plain"]
    engine.behind = False
    engine.progress()
    assert sink.written == [b"plain", b"barrierafter"]


def test_a_barrier_that_waited_for_a_commit_then_waits_for_the_acknowledgements(
    replies: Replies, sink: Sink, engine: FakeEngine
) -> None:
    replies.follow_batch(1)
    say(replies, b"plain")
    say(replies, b"barrier", barrier=True)
    replies.flush()
    engine.behind = True
    engine.commit(1)
    assert sink.written == [b"plain"]
    assert engine.holders == [replies]
    engine.behind = False
    engine.progress()
    assert sink.written == [b"plain", b"barrier"]
    assert engine.holders == []


def test_acknowledgements_hold_up_no_reply_that_is_no_barrier(replies: Replies, sink: Sink, engine: FakeEngine) -> None:
    engine.behind = True
    replies.follow_batch(1)
    say(replies, b"plain")
    replies.flush()
    engine.commit(1)
    assert sink.written == [b"plain"]


def test_nothing_is_said_to_a_connection_that_is_gone(replies: Replies, sink: Sink, engine: FakeEngine) -> None:
    say(replies, b"now")
    replies.follow_batch(1)
    say(replies, b"later")
    replies.discard()
    replies.flush()
    engine.commit(1)
    assert sink.written == []
    assert not waits(replies)


def test_a_connection_that_goes_while_it_waits_is_not_held_any_longer(
    replies: Replies, sink: Sink, engine: FakeEngine
) -> None:
    replies.follow_batch(1)
    say(replies, b"later")
    replies.flush()
    replies.discard()
    assert engine.holders == []
    replies.release()
    replies.discard()  # and again does nothing
    assert sink.written == []


def test_the_answer_to_a_settlement_waits_until_it_is_written(engine: FakeEngine, sink: Sink) -> None:
    replies = Replies(engine, sink)  # type: ignore[arg-type]
    replies.follow_round(3)
    replies.begin().append(b"done")
    replies.flush()
    engine.settled = 2
    engine.progress()
    assert sink.written == []
    engine.settled = 3
    engine.progress()
    assert sink.written == [b"done"]
    assert engine.holders == []


def test_a_reply_that_is_not_known_yet_holds_up_those_behind_it(engine: FakeEngine, sink: Sink) -> None:
    replies = Replies(engine, sink)  # type: ignore[arg-type]
    pending = replies.begin_pending()
    replies.begin().append(b"second")
    replies.flush()
    engine.progress()
    assert sink.written == []
    pending.parts.append(b"first ")
    pending.pending = False
    replies.release()
    assert sink.written == [b"first second"]
