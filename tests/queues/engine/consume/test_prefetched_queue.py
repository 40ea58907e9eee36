"""The order in which a prefetched queue gives out its messages, while some of them are in the store, or on their way
there.

Messages are numbers: the id and the payload of each are the same.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import pytest

from queues.engine.consume.backlog import ClaimResult
from queues.engine.consume.consumer import Waiter
from queues.engine.consume.interest import COLD_SHARED
from queues.engine.consume.low_watermark import LOWEST
from queues.engine.consume.memory import BATCH, FlowLimits
from queues.engine.consume.pace import FEW_AHEAD
from queues.engine.consume.prefetch import OVERTAKING
from queues.engine.consume.prefetched_queue import PrefetchedQueue, QueueSchedule
from queues.engine.health import Health
from queues.engine.message import Delivery, Message
from queues.engine.node import LocalNode
from queues.engine.options import EngineOptions
from queues.engine.policies import QueuePolicy
from tests.queues.engine.conftest import Worker

POLICY = QueuePolicy(
    id=1, name="q", paused=False, refuse_when_paused=False, concurrency_limit=None, max_attempts=3, retry_backoff=0.0,
    retry_backoff_cap=0.0, ack_timeout=60.0, message_ttl=None, max_length=None, overflow="reject", retention="none",
    dead_letter_queue_id=None,
)  # fmt: skip
SNAPSHOT = "10:10:"


class Settlements:
    """The settlement writer, as far as hand-backs and purges go."""

    def __init__(self) -> None:
        self.health = Health()
        self.round = 1
        self.handed_back = 0
        self.handing: list[int] = []
        self.purged: list[int] = []

    def audited(self, _: QueuePolicy) -> None: ...

    def hand_back(self, taken: list[tuple[int, int | None]], _: None = None, attempts: Sequence[int] = ()) -> None:
        self.handing += [id for id, _ in taken]

    def purge(self, ids: list[int], _: str) -> None:
        self.purged += ids


class Fetcher:
    """The fetcher: notes which queues want messages."""

    def __init__(self) -> None:
        self.limits = FlowLimits(EngineOptions(conninfo="", peppers=(), name="test"))
        self.node = LocalNode()
        self.wanted = False

    def want(self, queue: PrefetchedQueue) -> None:
        self.wanted |= not queue.backlog.claiming


class Taker(Waiter):
    """A consumer that waits for one message, and again as soon as it has one if it is `greedy`."""

    def __init__(self, queue: PrefetchedQueue, *, greedy: bool = False) -> None:
        super().__init__(key=None)
        self.queue = queue
        self.greedy = greedy
        self.taken: list[int] = []
        queue.wait(self)

    def deliver(self, delivery: Delivery) -> None:
        self.taken.append(int(delivery[1]))
        if self.greedy:
            self.queue.wait(self)

    def refuse(self) -> None:
        raise AssertionError("it was refused")


class Refused(Taker):
    """A consumer that may be refused."""

    refused = 0

    def refuse(self) -> None:
        self.refused += 1


class Shop:
    """A prefetched queue with its store, in which claims and hand-backs end when the test says so."""

    def __init__(self, **policy: Any) -> None:
        self.stored: set[int] = set()
        self.settlements, self.fetcher = Settlements(), Fetcher()
        everything: Any = self.settlements
        self.queue = PrefetchedQueue(dataclasses.replace(POLICY, **policy), everything, self.fetcher, QueueSchedule())
        self.claim()  # finds nothing: the fast gear

    def publish(self, *ids: int) -> None:
        """Messages are stored as leased to this node, and are delivered after the commit."""
        self.queue.prefetch.add_run(ids, [b"%d" % id for id in ids], None, 0)

    def begin_claim(self) -> int:
        assert not self.queue.prefetch.in_transit
        limit = self.queue.prefetch.claim_limit()
        self.queue.backlog.begin_claim()
        return limit

    def end_claim(self, limit: int = BATCH) -> list[int]:
        found = sorted(self.stored)[:limit]
        self.stored.difference_update(found)
        result = ClaimResult(SNAPSHOT, len(found) == limit, found[-1] if found else None, len(found), len(found))
        self.queue.prefetch.end_claim(result, limit, LOWEST)
        self.queue.prefetch.add_claimed([_message(id) for id in found])
        self.queue.prefetch.refilled()
        return found

    def claim(self) -> list[int]:
        self.fetcher.wanted = False
        return self.end_claim(self.begin_claim())

    def write_handed_back(self) -> None:
        """The hand-backs are committed."""
        written, self.settlements.handing = self.settlements.handing, []
        self.stored.update(written)
        if written:
            self.queue.prefetch.more_in_store(min(written))
        self.settlements.handed_back = self.settlements.round
        self.settlements.round += 1

    def take(self) -> int:
        """The next message; its tag is its id, as all here have first tags in their order."""
        delivery = self.queue.deliver(time.monotonic())
        assert delivery is not None
        self.tags[int(delivery[1])] = delivery[0]
        return int(delivery[1])

    tags: dict[int, int] = {}


def _message(id: int) -> Message:
    return id, b"%d" % id, 0, None


@pytest.fixture
def shop() -> Shop:
    """Messages 1 to 4 in memory, of which a consumer has taken 1 and handed it back."""
    return handed_back()


def handed_back(**policy: Any) -> Shop:
    shop = Shop(**policy)
    shop.publish(1, 2, 3, 4)
    assert shop.take() == 1
    shop.queue.deliveries.hand_back(shop.tags[1])
    return shop


def test_a_message_handed_back_is_the_next_of_a_consumer_that_waits(shop: Shop) -> None:
    taker = Taker(shop.queue)
    assert taker.taken == []  # on its way to the store
    shop.write_handed_back()
    assert taker.taken == []  # in the store
    assert shop.fetcher.wanted
    assert shop.claim() == [1]
    assert taker.taken == [1]
    assert (shop.take(), shop.take()) == (2, 3)


def test_a_message_handed_back_is_the_next_while_it_is_being_claimed(shop: Shop) -> None:
    shop.write_handed_back()
    begun = shop.begin_claim()
    taker = Taker(shop.queue)
    assert taker.taken == []
    shop.end_claim(begun)
    assert taker.taken == [1]


def test_a_message_handed_back_is_the_next_also_when_the_first_claim_fails(shop: Shop) -> None:
    shop.write_handed_back()
    shop.begin_claim()
    shop.queue.prefetch.abort_claim()
    assert shop.queue.deliver(time.monotonic()) is None
    assert shop.claim() == [1]
    assert shop.take() == 1


def test_a_message_handed_back_is_the_next_for_polling_and_pushed_consumers(shop: Shop) -> None:
    worker: Any = Worker(shop.queue)
    assert shop.queue.deliver_many(time.monotonic(), 2) == []
    worker.grant(2)
    assert worker.pushed == []
    shop.write_handed_back()
    shop.claim()
    assert [push.id for push in worker.pushed] == [1, 2]
    assert shop.queue.deliver_many(time.monotonic(), 2) == [(range(4, 6), [b"3", b"4"])]


def test_a_message_handed_back_is_the_next_after_a_pause(shop: Shop) -> None:
    shop.write_handed_back()
    shop.queue.change_policy(dataclasses.replace(POLICY, paused=True))
    shop.queue.prefetch.claim_limit()  # the fetcher asks, and claims nothing
    shop.queue.change_policy(POLICY)
    assert shop.queue.deliver(time.monotonic()) is None
    shop.claim()
    assert shop.take() == 1


def test_a_message_that_was_being_stored_as_an_earlier_one_was_handed_back_comes_after_it() -> None:
    shop = Shop()
    shop.publish(1)
    shop.take()
    shop.queue.backlog.begin_storing()
    shop.queue.deliveries.hand_back(shop.tags[1])
    shop.write_handed_back()
    shop.queue.prefetch.end_storing()
    shop.publish(2)
    taker = Taker(shop.queue)
    assert taker.taken == []
    shop.claim()
    assert taker.taken == [1]


def test_messages_handed_back_come_first_however_many_they_are() -> None:
    shop, count = Shop(), 2 * OVERTAKING + 50
    shop.publish(*range(count + 2))
    taken = [shop.take() for _ in range(count)]
    for id in reversed(taken):
        shop.queue.deliveries.hand_back(shop.tags[id])
    shop.write_handed_back()
    taker, claims = Taker(shop.queue, greedy=True), 0
    shop.fetcher.limits.set_prefetch(0)  # no room but for those that overtake
    while shop.fetcher.wanted:
        shop.claim()
        claims += 1
    assert claims == 3
    assert taker.taken == list(range(count + 2))


def test_a_message_that_arrives_during_a_claim_is_not_taken_for_claimed(shop: Shop) -> None:
    shop.write_handed_back()
    limit = shop.begin_claim()
    shop.stored.add(-5)  # of a higher priority
    shop.queue.prefetch.more_in_store(-5)
    shop.queue.prefetch.end_claim(ClaimResult(SNAPSHOT, False, 1, 1, 1), limit, LOWEST)
    shop.stored.discard(1)
    shop.queue.prefetch.add_claimed([_message(1)])
    assert shop.queue.deliver(time.monotonic()) is None
    shop.claim()
    assert (shop.take(), shop.take()) == (-5, 1)


def test_messages_of_a_queue_with_a_limit_go_back_when_they_are_overtaken() -> None:
    shop = Shop(concurrency_limit=2)
    shop.stored |= {1, 2, 3}
    shop.queue.prefetch.more_in_store(1)
    assert shop.queue.deliver_many(time.monotonic(), 2) == []
    assert shop.claim() == [1, 2]
    assert shop.take() == 1
    shop.queue.deliveries.hand_back(shop.tags[1])
    shop.write_handed_back()
    assert shop.stored == {1, 2, 3}
    taker = Taker(shop.queue)
    assert shop.claim() == [1]
    assert taker.taken == [1]


def test_a_node_takes_no_more_of_a_shared_queue_than_was_asked_for_when_it_is_overtaken(shop: Shop) -> None:
    shop.queue.interest.share(True)
    shop.write_handed_back()
    shop.stored |= {5, 6}
    Taker(shop.queue)
    assert shop.claim() == [1]
    assert shop.stored == {5, 6}


def fast() -> Shop:
    """A queue that another node serves too. Its consumers here have just taken as many as count."""
    shop = Shop()
    shop.queue.interest.share(True)
    shop.queue.prefetch.wanted(time.monotonic())  # the first sample
    shop.publish(*range(FEW_AHEAD))
    assert sum(len(bodies) for _, bodies in shop.queue.deliver_many(time.monotonic(), FEW_AHEAD)) == FEW_AHEAD
    return shop


@pytest.fixture
def no_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pace that counts all that was taken, for ever."""
    monkeypatch.setattr("queues.engine.consume.pace.AHEAD", 1e12)


@pytest.mark.usefixtures("no_samples")
def test_of_a_shared_queue_as_many_are_leased_ahead_as_its_consumers_have_lately_taken() -> None:
    shop = fast()
    later = time.monotonic() + COLD_SHARED  # the burst counts no more
    assert shop.queue.prefetch.wanted(later) == FEW_AHEAD
    shop.publish(*range(FEW_AHEAD, FEW_AHEAD + 30))
    assert shop.queue.prefetch.wanted(later) == FEW_AHEAD - 30


@pytest.mark.usefixtures("no_samples")
def test_nothing_is_leased_ahead_while_an_earlier_message_is_ready_in_the_store() -> None:
    shop = fast()
    shop.queue.prefetch.more_in_store(FEW_AHEAD)
    assert shop.queue.prefetch.wanted(time.monotonic()) == 0


@pytest.mark.usefixtures("no_samples")
def test_a_claim_brings_as_many_ahead_as_consumers_here_have_lately_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queues.engine.consume.held_messages.UNKNOWN_BYTES", 1)  # that there is room for all
    shop = fast()
    shop.queue.prefetch.more_in_store(FEW_AHEAD)
    assert shop.queue.prefetch.claim_limit() == FEW_AHEAD
    shop.publish(*range(FEW_AHEAD, FEW_AHEAD + 30))
    assert shop.queue.prefetch.claim_limit() == FEW_AHEAD - 30
    shop.queue.change_policy(dataclasses.replace(POLICY, concurrency_limit=5))
    assert shop.queue.prefetch.claim_limit() == 0, "of a queue with a limit what is here would count as being worked on"


@pytest.mark.usefixtures("no_samples")
def test_what_is_ahead_goes_back_when_the_pace_falls_though_a_consumer_still_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shop = fast()
    now = time.monotonic() + COLD_SHARED
    shop.publish(*range(FEW_AHEAD, 2 * FEW_AHEAD))
    assert not shop.queue.interest.has_surplus(now)
    monkeypatch.setattr("queues.engine.consume.pace.AHEAD", 1e-9)  # nothing was taken since the last sample
    assert not shop.queue.interest.has_surplus(now)
    assert not shop.queue.interest.has_surplus(now + 0.9 * COLD_SHARED), "its last may have been stored just now"
    assert shop.queue.interest.has_surplus(now + 1.1 * COLD_SHARED)
    shop.queue.prefetch.return_all()
    assert shop.settlements.handing == list(range(FEW_AHEAD, 2 * FEW_AHEAD))
    taker = Taker(shop.queue)
    assert shop.queue.prefetch.wanted(now + 2 * COLD_SHARED) == 0, "a new message would overtake them"
    shop.write_handed_back()
    assert shop.claim() == [FEW_AHEAD]
    assert taker.taken == [FEW_AHEAD]


@pytest.mark.usefixtures("no_samples")
def test_what_came_just_now_stays_though_there_was_too_much_at_the_last_look_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shop = fast()
    now = time.monotonic() + COLD_SHARED
    monkeypatch.setattr("queues.engine.consume.pace.AHEAD", 1e-9)
    shop.publish(*range(FEW_AHEAD, 2 * FEW_AHEAD))
    assert not shop.queue.interest.has_surplus(now)
    shop.queue.deliver_many(now, FEW_AHEAD)
    shop.publish(*range(2 * FEW_AHEAD, 3 * FEW_AHEAD))
    assert not shop.queue.interest.has_surplus(now + 1.1 * COLD_SHARED), "others may have what comes behind it"
    assert shop.queue.interest.has_surplus(now + 2.2 * COLD_SHARED)
    shop.queue.prefetch.return_all()
    shop.publish(*range(3 * FEW_AHEAD, 4 * FEW_AHEAD))
    assert not shop.queue.interest.has_surplus(now + 2.3 * COLD_SHARED), "what was too much then went back"


@pytest.mark.usefixtures("no_samples")
def test_what_is_ahead_stays_while_no_other_node_serves_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = fast()
    shop.publish(*range(FEW_AHEAD, 2 * FEW_AHEAD))
    monkeypatch.setattr("queues.engine.consume.pace.AHEAD", 1e-9)
    later = time.monotonic() + COLD_SHARED
    assert not shop.queue.interest.has_surplus(later)
    shop.queue.interest.share(False)
    assert not shop.queue.interest.has_surplus(later + 2 * COLD_SHARED)
    shop.queue.interest.share(True)
    assert not shop.queue.interest.has_surplus(later + 3 * COLD_SHARED), "a surplus of another time"


def test_consumers_get_what_is_here_when_the_store_has_nothing_that_can_be_claimed(shop: Shop) -> None:
    taker = Taker(shop.queue)
    shop.write_handed_back()
    shop.queue.prefetch.exhaust()
    assert taker.taken == [2]


def test_a_purge_removes_what_was_on_its_way_back_and_not_what_a_consumer_has(shop: Shop) -> None:
    shop.queue.prefetch.purge(3, "me")
    assert sorted(shop.settlements.purged) == [1, 2, 3]
    again = handed_back()
    again.write_handed_back()
    again.claim()
    assert again.take() == 1
    again.queue.prefetch.purge(3, "me")
    assert sorted(again.settlements.purged) == [2, 3]


def test_a_purge_removes_what_was_on_its_way_here() -> None:
    shop = Shop()
    shop.stored |= {1, 2, 3}
    shop.queue.prefetch.more_in_store(1)
    begun = shop.begin_claim()
    shop.queue.prefetch.purge(2, "me")
    shop.end_claim(begun)
    assert shop.settlements.purged == [1, 2]
    assert shop.take() == 3


def test_a_purge_removes_what_was_on_its_way_here_also_when_it_comes_by_later_claims_since_the_first_failed() -> None:
    shop = Shop()
    shop.stored |= {1, 2, 3, 4}
    shop.queue.prefetch.more_in_store(1)
    shop.begin_claim()
    shop.queue.prefetch.purge(3, "me")
    shop.queue.prefetch.abort_claim()
    for _ in range(4):
        shop.begin_claim()
        shop.end_claim(1)
    assert shop.settlements.purged == [1, 2, 3]
    assert shop.take() == 4
    shop.queue.deliveries.hand_back(shop.tags[4])
    shop.write_handed_back()
    shop.stored.add(3)  # a consumer had it as the others were purged
    shop.claim()
    assert shop.take() == 3


def test_a_waiter_is_served_before_workers_and_takes_one_message() -> None:
    shop = Shop()
    worker: Any = Worker(shop.queue)
    worker.grant(10)
    taker = Taker(shop.queue)
    assert (shop.queue.interest.demand, taker.credits) == (11, 1)
    shop.publish(1, 2, 3)
    assert (taker.taken, [push.id for push in worker.pushed]) == ([1], [2, 3])
    assert worker.deadlines[0] is not None
    assert len(shop.queue._schedule.deliveries) == 1  # the waiter's delivery has no deadline
    assert (shop.queue.interest.demand, taker.credits) == (8, 0)
    left = Taker(shop.queue)
    shop.queue.cancel(left)
    shop.queue.cancel(left)
    shop.publish(4)
    assert (left.taken, len(worker.pushed)) == ([], 3)


def test_a_waiter_that_waits_again_as_it_is_served_is_served_again_however_many_there_are() -> None:
    shop = Shop()
    taker = Taker(shop.queue, greedy=True)
    shop.publish(*range(5000))  # more than calls can be nested
    assert taker.taken == list(range(5000))


def test_consumers_of_a_removed_queue_are_refused_and_have_no_credits() -> None:
    shop = Shop()
    worker: Any = Worker(shop.queue)
    worker.grant(10)
    waiting = Refused(shop.queue)
    shop.queue.change_policy(None)
    assert (waiting.refused, waiting.credits, worker.credits, shop.queue.interest.demand) == (1, 0, 0, 0)


def test_a_queue_that_is_paused_and_refuses_refuses_waiters_and_keeps_workers() -> None:
    shop = Shop()
    worker: Any = Worker(shop.queue)
    worker.grant(10)
    shop.queue.change_policy(dataclasses.replace(POLICY, paused=True, refuse_when_paused=True))
    waiting = Refused(shop.queue)
    assert (waiting.refused, waiting.credits, worker.credits) == (1, 0, 10)


def test_the_fast_gear_pays_nothing(shop: Shop) -> None:
    fast = Shop()
    fast.publish(1, 2)
    assert [fast.queue.prefetch.overtaken, fast.queue.backlog.unclaimed, fast.fetcher.wanted] == [False] * 3
    assert [shop.queue.prefetch.overtaken, shop.queue.backlog.unclaimed] == [True] * 2
    # With 30 fields CPython 3.11 no longer keeps an object's fields in one array: a delivery then costs a tenth more.
    assert len(vars(fast.queue)) < 30




def test_a_consumer_that_comes_at_long_intervals_is_waited_for() -> None:
    queue, time = Shop().queue, 1000.0
    queue.interest.came(time)
    assert queue.prefetch.wanted(time + 0.9)
    assert not queue.prefetch.wanted(time + 1.1)
    queue.interest.came(time := time + 1.5)
    assert queue.prefetch.wanted(time + 4.4)
    assert not queue.prefetch.wanted(time + 4.6)
    assert not queue.interest.is_cold(time + 4.9)
    assert queue.interest.is_cold(time + 5.1)
    queue.interest.came(time := time + 3.0)
    assert not queue.prefetch.wanted(time + 5.1), "nothing is leased to a queue that is cold as a rule"
    assert not queue.interest.is_cold(time + 8.9)
    assert queue.interest.is_cold(time + 9.1)
    for _ in range(5):
        queue.interest.came(time := time + 0.1)
    assert not queue.prefetch.wanted(time + 1.1)
    assert queue.interest.is_cold(time + 5.1)
