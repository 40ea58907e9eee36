"""The broker agrees with a plain model of queues, whatever the order of the steps; and each difference that was found
once, as a case of its own. `MODEL_STEPS` sets how many steps are tried (`make soak`: 10,000)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from queues.engine.settle import segments
from queues.operations.keys import create_key
from tests.queues.engine.conftest import Store
from tests.queues.model.broker import Brokers
from tests.queues.model.consumers import Consumer, Receiver, Worker
from tests.queues.model.machine import KEY, BrokerMachine

SOAK = "MODEL_STEPS" in os.environ
#: Steps of one run, in `make test` always the same; and of one example.
STEPS = int(os.environ.get("MODEL_STEPS", "100"))
EXAMPLE = 25


@pytest.fixture
def brokers(store: Store, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Brokers]:
    monkeypatch.setattr(segments, "LINGER", segments.LINGER)
    create_key("dev", KEY)
    brokers = BrokerMachine.brokers = Brokers(store, "fivewire://" + database_url.partition("://")[2])
    yield brokers
    brokers.stop()


class Steps(BrokerMachine):
    """Single steps of the machine, for cases that it has found."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.begin(**options)

    def of(self, kind: type[Consumer]) -> Consumer:
        [found] = [one for one in self.consumers if type(one) is kind]
        return found


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


@pytest.mark.timeout(0 if SOAK else 600)
def test_the_broker_agrees_with_a_plain_model_of_queues(brokers: Brokers) -> None:
    run_state_machine_as_test(
        BrokerMachine,
        settings=settings(
            max_examples=max(1, STEPS // EXAMPLE), stateful_step_count=EXAMPLE, deadline=None, database=None,
            derandomize=not SOAK, suppress_health_check=list(HealthCheck), print_blob=True,
            phases=(Phase.explicit, Phase.generate, Phase.shrink) if SOAK else (Phase.explicit, Phase.generate),
        ),
    )
