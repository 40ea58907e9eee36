"""The generator of the BlipMQ bench beside a consumer that was slow."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import pytest

from brokersite.rigs.bench.drivers.blipmq import BlipConnection, BlipConsumer, BlipMQ, frame
from brokersite.rigs.bench.errors import BenchError
from brokersite.rigs.bench.stream import Endpoint
from tests.waiting import wait_until
from tests.wire.broker import KEY, Broker, Database
from wire.blipmq import codec

#: Bytes of a message that its consumer is given: its run, producer and number.
RECORD = 8


@pytest.fixture
def driver(broker: Broker) -> BlipMQ:
    driver = BlipMQ(Endpoint(*broker.blipmq), KEY, "twice", run=1, size=100, prefetch=8)
    with closing(BlipConnection(driver)) as connection:
        return replace(driver, subscriptions=(connection.subscribe("twice"),))


def test_a_message_that_came_twice_does_not_end_the_bench(driver: BlipMQ, store: Database) -> None:
    queue = store.queue_of(driver.subscriptions[0])
    with (
        closing(driver.producer(0)) as producer,
        closing(driver.consumer(0)) as slow,
        closing(driver.consumer(0)) as other,
    ):
        producer.publish(0, 1)
        wait_until(lambda: slow.receive(0.0))
        wait_until(lambda: other.receive(0.0))  # it was not acknowledged in time
        other.settle()
        store.wait_for_states(queue)
        producer.publish(1, 2)
        records: list[bytes | bytearray] = []
        while len(b"".join(records)) < 2 * RECORD:
            records.append(slow.receive(0.0))
        slow.settle()
        store.wait_for_states(queue)


def nack(code: int) -> bytes:
    return frame(codec.NACK, 7, code.to_bytes(2) + b"\0\x02no")


@pytest.fixture
def answered(driver: BlipMQ, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[bytes]], bytes | bytearray]:
    """The records that a consumer finds in bytes that come in these parts."""

    def receive(parts: list[bytes]) -> bytes | bytearray:
        left = iter(parts)
        with closing(driver.consumer(0)) as consumer:
            monkeypatch.setattr(BlipConsumer, "send", lambda *_: None)
            monkeypatch.setattr(BlipConsumer, "read", lambda self: self.rest.extend(next(left)))
            return consumer.receive(0.0)

    return receive


@pytest.mark.parametrize("cut", range(1, 80, 13))
def test_answers_to_second_acknowledgements_are_left_out_wherever_they_are(
    driver: BlipMQ, answered: Callable[[list[bytes]], bytes | bytearray], cut: int
) -> None:
    said = nack(404) + driver.message + nack(404) + nack(404) + driver.message + nack(404) + frame(codec.PONG, 4)
    assert len(answered([said[:cut], said[cut:-cut], said[-cut:]])) == 2 * RECORD


def test_another_refusal_ends_the_bench(driver: BlipMQ, answered: Callable[[list[bytes]], bytes | bytearray]) -> None:
    with pytest.raises(BenchError, match="answers 500: no"):
        answered([driver.message + nack(404) + nack(500) + frame(codec.PONG, 4)])


def test_an_unknown_frame_ends_the_bench(driver: BlipMQ, answered: Callable[[list[bytes]], bytes | bytearray]) -> None:
    with pytest.raises(BenchError, match="type 9 and 14 bytes"):
        answered([driver.message + frame(9, 4, b"x")])
