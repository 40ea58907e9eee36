"""The broker agrees with a plain model of queues, whatever the order of the steps; and each difference that was found
once, as a case of its own. `MODEL_STEPS` sets how many steps are tried (`make soak`: 10,000)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis.stateful import run_state_machine_as_test

from queues.engine.consume import interest
from queues.engine.settle import segments
from queues.operations.keys import create_key
from tests.queues.engine.conftest import Store
from tests.queues.model.broker import Brokers
from tests.queues.model.consumers import Consumer, Poller, Receiver, Worker
from tests.queues.model.consuming import PARTS
from tests.queues.model.leases import noted_leases
from tests.queues.model.machine import BrokerMachine
from tests.queues.model.publishing import KEY
from tests.queues.model.reference import READY
from tests.waiting import wait_until

SOAK = "MODEL_STEPS" in os.environ
#: Steps of one run, in `make test` always the same; and of one example.
STEPS = int(os.environ.get("MODEL_STEPS", "100"))
EXAMPLE = 25


@pytest.fixture
def brokers(store: Store, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Brokers]:
    monkeypatch.setattr(segments, "LINGER", segments.LINGER)
    create_key("dev", KEY)
    with noted_leases(store):
        brokers = BrokerMachine.brokers = Brokers(store, "fivewire://" + database_url.partition("://")[2])
        yield brokers
        brokers.stop()


class Steps(BrokerMachine):
    """Single steps of the machine, for cases that it has found."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.begin(**options)

    def of(self, kind: type[Consumer], n: int = 0) -> Consumer:
        return [one for one in self.consumers if type(one) is kind][n]

    def settle_part(self, kind: type[Consumer], part: str) -> None:
        """Settle a part of what the first one of this kind holds."""
        consumer = self.of(kind)
        self._settle_part(consumer, list(consumer.held)[PARTS[part]])
        self._check()


@pytest.fixture
def steps(brokers: Brokers) -> Iterator[Steps]:
    """The beginning of each example: two jobs at a worker, one message at an SSPQ client, more behind them. In the end
    all messages are consumed, in order."""
    steps = Steps()
    yield steps
    steps.teardown()


def test_the_next_consumer_goes_on_where_the_single_active_one_ended(brokers: Brokers) -> None:
    steps = Steps(single=True)
    steps.settle("m1")
    steps.disconnect(steps.of(Worker), polite=False)
    assert list(steps.of(Receiver).held) == ["m2"]
    steps.settle("m2")
    steps.lose_connections()
    steps.receive()
    assert list(steps.of(Receiver).held) == ["m3"]
    steps.teardown()


def test_a_message_held_over_sspq_keeps_its_place_when_the_broker_stops(steps: Steps) -> None:
    steps.fail("m2")
    steps.restart(kills=False)


def test_a_job_that_goodbye_hands_back_is_the_next_of_an_sspq_client(steps: Steps) -> None:
    steps.settle("m3")
    steps.disconnect(steps.of(Worker), polite=True)
    steps.receive()
    assert list(steps.of(Receiver).held) == ["m1"]


#: Nodes, and messages from which on those published together are a segment.
FORMS = [(nodes, size) for nodes in (1, 2) for size in (1, 2, 7)] if SOAK else [(1, 7), (2, 2)]


@pytest.mark.parametrize(("nodes", "size"), FORMS)
def test_a_backlog_is_delivered_to_few_and_many_consumers_over_restarts(
    brokers: Brokers, nodes: int, size: int
) -> None:
    steps = Steps(nodes=nodes, segment_messages=size)
    for kind in (Receiver, Worker):
        steps.disconnect(steps.of(kind), polite=True)
    steps.send(300, 3)
    steps.enqueue(40, 2, node=1)
    steps.publish_to_topic(40, node=1)
    steps.publish_many_from_django(7)
    steps.grant(0, 3, False, node=0)
    steps.settle_part(Worker, "first")
    steps.restart(kills=True)
    steps.enqueue(7, None)
    steps.grant(0, 20, False, node=1)
    steps.poll(20, node=0)
    steps.settle_part(Worker, "first half")
    steps.settle_part(Poller, "last")
    steps.lose_connections(node=1)
    steps.grant(0, 200, False, node=0)
    steps.receive(node=1)
    steps.disconnect(steps.of(Worker, 0), polite=False)
    steps.restart(kills=False, node=1)
    steps.die(node=0)
    steps.send(40, 255)
    steps.grant(0, 2, False)
    steps.teardown()


def test_an_operator_removes_moves_and_purges_messages_of_a_backlog(brokers: Brokers) -> None:
    steps = Steps(segment_messages=7)
    for kind in (Receiver, Worker):
        steps.disconnect(steps.of(kind), polite=True)
    steps.send(40, 3)
    steps.remove_messages("m9", "m20", "m47")
    steps.move(5)
    steps.grant(0, 3, True)
    steps.settle_part(Worker, "last")
    steps.disconnect(steps.of(Worker), polite=True)
    steps.move(None)
    steps.send(40, 3)
    steps.purge()
    steps.send(40, 3)
    steps.limit_length(0, "drop-oldest")
    steps.publish_from_django(None, 0.0)
    steps.enqueue(3, None)
    steps.change(steps.main, max_length=None)
    steps.send(7, 3)
    steps.delete()
    steps.send(7, 3)
    steps.teardown()


def test_a_node_that_took_a_message_and_handed_it_back_between_two_looks_is_known(brokers: Brokers) -> None:
    steps = Steps(nodes=2)
    steps.change(steps.main, paused=True)
    steps.send(1, 3)  # stored ready
    message = steps.main.messages["m8"]
    assert not message.nodes
    for leased in ((1, brokers.at(1).engine.node), (0, None)):
        brokers.store.connection.execute(
            b"update queues_message set (state, node_id) = (%s, %s) where payload = 'm8'", leased
        )
    steps._note_holders(steps.main)
    assert message.is_elsewhere(brokers.at(0))
    steps.change(steps.main, paused=False)
    steps.teardown()


def test_messages_that_a_node_hands_back_while_others_are_moved_come_behind_these(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interest, "COLD_SHARED", 3600.0)  # until then what no consumer takes stays in memory
    steps = Steps(segment_messages=7)
    steps.change(steps.main, paused=True)
    steps.send(7, 3)  # stored ready

    async def hand_back() -> None:
        brokers.at(0).engine.prefetched_queues.queues[steps.rows[steps.main.name].pk].prefetch.return_all()

    def back() -> list[str]:
        return [label for label, (state, _) in steps._stored_of(steps.main).items() if state == 0]

    def progress(moved: int) -> None:
        if moved == 7:
            brokers.at(0).ask(hand_back())
            wait_until(lambda: len(back()) == 4, "the messages that the node had")

    steps.move(None, progress)
    assert [one.label for one in steps.graves.of(READY)] == [*(f"m{n}" for n in range(8, 15)), "m4", "m5", "m6", "m7"]
    steps.teardown()


@pytest.mark.timeout(0 if SOAK else 600)
def test_the_broker_agrees_with_a_plain_model_of_queues(brokers: Brokers) -> None:
    run_state_machine_as_test(
        BrokerMachine,
        settings=settings(
            max_examples=max(1, STEPS // EXAMPLE), stateful_step_count=EXAMPLE, deadline=None, database=None,
            derandomize=not SOAK, suppress_health_check=list(HealthCheck), print_blob=True,
            # Shrinking takes long where runs differ: all steps are told instead.
            verbosity=Verbosity.debug if SOAK else Verbosity.normal, report_multiple_bugs=False,
            phases=(Phase.explicit, Phase.generate),
        ),
    )
