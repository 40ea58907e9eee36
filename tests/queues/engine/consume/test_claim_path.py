"""The table of the claim path, every cell of it against a prefetched queue: which state follows, whether a claim is
asked
for, and what a state allows."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from queues.engine.consume.backlog import ClaimResult
from queues.engine.consume.claim_path import TABLE, Action, Event, IllegalTransition, State
from queues.engine.consume.low_watermark import LOWEST
from tests.queues.engine.consume.test_prefetched_queue import SNAPSHOT, Shop, Taker

#: The shortest way to each state from a queue that has caught up.
WAYS = {
    State.BEHIND: [Event.ARRIVED],
    State.CLAIMING: [Event.ARRIVED, Event.CLAIM_BEGUN],
    State.CLAIMING_BEHIND: [Event.ARRIVED, Event.CLAIM_BEGUN, Event.ARRIVED],
    State.NEARLY_DONE: [Event.ARRIVED, Event.CLAIM_BEGUN, Event.ARRIVED, Event.CLAIMED_ALL],
    State.CAUGHT_UP: [],
    State.STORING: [Event.STORING_BEGUN],
    State.STORING_BEHIND: [Event.STORING_BEGUN, Event.ARRIVED],
}


def claimed(shop: Shop, *, more: bool) -> None:
    shop.queue.prefetch.end_claim(ClaimResult(SNAPSHOT, more, None, 0, 0), 1, LOWEST)
    shop.queue.prefetch.add_claimed([])
    shop.queue.prefetch.refilled()


#: The cause of each event.
CAUSES: dict[Event, Callable[[Shop], object]] = {
    Event.ARRIVED: lambda shop: shop.queue.prefetch.more_in_store(7),
    Event.RETURNED: lambda shop: shop.queue.prefetch.return_all(),
    Event.CLAIM_BEGUN: lambda shop: shop.queue.backlog.begin_claim(),
    Event.CLAIMED_SOME: lambda shop: claimed(shop, more=True),
    Event.CLAIMED_ALL: lambda shop: claimed(shop, more=False),
    Event.CLAIM_FAILED: lambda shop: shop.queue.prefetch.abort_claim(),
    Event.EXHAUSTED: lambda shop: shop.queue.prefetch.exhaust(),
    Event.STORING_BEGUN: lambda shop: shop.queue.backlog.begin_storing(),
    Event.STORED: lambda shop: shop.queue.prefetch.end_storing(),
    Event.WRITER_IDLE: lambda shop: shop.queue.backlog.writer_idle(),
}


@dataclass
class Facts:
    """The truth that the states stand for, without the table."""

    #: The store has messages that no claim has taken; a claim is under way, and some arrived since it began; a claim
    #: took all but these; a transaction that leases new ones is under way.
    left: bool = False
    claiming: bool = False
    news: bool = False
    nearly: bool = False
    storing: bool = False

    def allow(self, event: Event) -> bool:
        if event is Event.CLAIM_BEGUN:
            return not (self.claiming or self.storing)
        if event is Event.STORING_BEGUN:
            return not (self.left or self.claiming or self.storing)
        if event is Event.STORED:
            return self.storing
        return self.claiming or event not in (Event.CLAIMED_SOME, Event.CLAIMED_ALL, Event.CLAIM_FAILED)

    def happen(self, event: Event) -> Action:
        """Change as the event says; returns what is done."""
        at_rest = not (self.claiming or self.storing)
        if event in (Event.ARRIVED, Event.RETURNED):
            self.left = self.news = True
            return Action.ASK if event is Event.ARRIVED and at_rest else Action.NOTHING
        if event is Event.CLAIM_BEGUN:
            self.claiming, self.news = True, False
        elif event is Event.CLAIMED_ALL:
            self.claiming, self.left, self.nearly = False, self.news, self.news
        elif event in (Event.CLAIMED_SOME, Event.CLAIM_FAILED):
            self.claiming, self.left, self.nearly = False, True, False
        elif event is Event.EXHAUSTED and at_rest:
            self.left = self.nearly = False
        elif event is Event.WRITER_IDLE:
            self.nearly = False
        elif event is Event.STORING_BEGUN:
            self.storing, self.nearly = True, False
        elif event is Event.STORED:
            self.storing = False
            return Action.ASK if self.left else Action.NOTHING
        return Action.NOTHING

    @property
    def state(self) -> State:
        if self.claiming:
            return State.CLAIMING_BEHIND if self.news else State.CLAIMING
        if self.storing:
            return State.STORING_BEHIND if self.left else State.STORING
        return State.CAUGHT_UP if not self.left else State.NEARLY_DONE if self.nearly else State.BEHIND


def in_state(state: State) -> Shop:
    """A queue in this state for which a consumer waits."""
    shop = Shop()
    Taker(shop.queue)
    for event in WAYS[state]:
        CAUSES[event](shop)
    assert shop.queue.backlog.state is state
    shop.fetcher.wanted = False
    return shop


def facts_of(state: State) -> Facts:
    facts = Facts()
    for event in WAYS[state]:
        facts.happen(event)
    return facts


@pytest.mark.parametrize("event", Event)
@pytest.mark.parametrize("state", State)
def test_a_row_says_what_is_true_and_is_what_a_queue_does(state: State, event: Event) -> None:
    shop, facts, row = in_state(state), facts_of(state), TABLE[state].get(event)
    if not facts.allow(event):
        assert row is None
        with pytest.raises(IllegalTransition, match=f"^{event.name} in {state.name}$"):
            CAUSES[event](shop)
    else:
        expected = facts.happen(event), facts.state
        if row is None:  # the writer may be idle at any time
            assert (event, expected) == (Event.WRITER_IDLE, (Action.NOTHING, state))
        else:
            assert row == expected
        CAUSES[event](shop)
    assert shop.queue.backlog.state is facts.state
    assert shop.fetcher.wanted == (row is not None and row[0] is Action.ASK)


def test_the_states_are_the_facts_however_long_a_queue_lives() -> None:
    shop, facts, source = in_state(State.CAUGHT_UP), Facts(), random.Random(1)
    seen = set()
    for _ in range(3000):
        event = source.choice([event for event in Event if facts.allow(event)])
        seen.add((facts.state, event))
        facts.happen(event)
        CAUSES[event](shop)
        assert shop.queue.backlog.state is facts.state
        assert shop.queue.backlog.unclaimed == (facts.left or facts.claiming)
    assert seen >= {(state, event) for state, row in TABLE.items() for event in row}


@pytest.mark.parametrize("state", State)
def test_a_state_allows_what_keeps_the_order(state: State) -> None:
    shop = in_state(state)
    queue, backlog = shop.queue, shop.queue.backlog
    assert (queue.prefetch.wanted(time.monotonic()) > 0) == (state is State.CAUGHT_UP)  # the fast gear
    assert queue.prefetch.in_transit == (state in (State.STORING, State.STORING_BEHIND))  # then no claim begins
    assert backlog.claiming == (state in (State.CLAIMING, State.CLAIMING_BEHIND))  # no second claim either
    assert queue.prefetch.may_refill == (state not in (State.CAUGHT_UP, State.STORING))
    queue.prefetch.purge(99, "me")
    assert (queue.prefetch._purged is not None) == backlog.claiming  # what the claim brings is purged too


def test_no_state_stores_and_claims() -> None:
    for row in TABLE.values():
        assert (Event.STORED in row) + (Event.CLAIM_FAILED in row) + (Event.CLAIM_BEGUN in row) == 1
    storing = [state for state, row in TABLE.items() if Event.STORING_BEGUN in row]
    assert storing == [State.CAUGHT_UP]


def test_a_claim_that_began_before_an_arrival_does_not_lead_to_the_fast_gear() -> None:
    for event in (Event.ARRIVED, Event.RETURNED):
        for state in (State.CLAIMING, State.CLAIMING_BEHIND):
            shop = in_state(state)
            CAUSES[event](shop)
            claimed(shop, more=False)
            assert shop.queue.backlog.state is State.NEARLY_DONE
            assert shop.queue.prefetch.wanted(time.monotonic()) == 0


def test_nobody_is_asked_for_a_claim_that_no_consumer_waits_for() -> None:
    shop = Shop()
    shop.queue.prefetch.more_in_store(7)
    assert not shop.fetcher.wanted
    shop.queue.prefetch.on_refill(lambda: None)
    shop.queue.prefetch.more_in_store(7)
    assert shop.fetcher.wanted


def test_a_claim_that_met_a_limit_has_had_all_for_now() -> None:
    shop = Shop(concurrency_limit=2)
    shop.queue.prefetch.more_in_store(7)
    shop.queue.backlog.begin_claim()
    shop.queue.prefetch.end_claim(ClaimResult(SNAPSHOT, True, 7, 1, 1), 2, LOWEST)
    assert shop.queue.backlog.state is State.CAUGHT_UP
