"""The measurements of a broker, over any driver. Load processes run `produce`, `consume` and the like.

Nothing is measured twice over: a rate runs from the first publish to the broker's word that it has taken the last
acknowledgement; latency at a rate is counted from the moment at which a message was due, not from when it was sent, so
that a broker that stalls is charged for all that had to wait (no coordinated omission).
"""

from __future__ import annotations

import os
import selectors
import statistics
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final, NamedTuple

from brokersite.rigs.bench.columns import Verified, positions, verify
from brokersite.rigs.bench.drivers import FanoutDriver, RunDriver
from brokersite.rigs.bench.errors import BenchError, MeasurementOverdue
from brokersite.rigs.bench.processes import LINGER, LoadProcess, LoadProgress, run
from brokersite.rigs.bench.stream import TIMEOUT
from brokersite.rigs.bench.subscribers import Subscribed, subscribe
from brokersite.rigs.bench.usage import CpuMeter

#: Figures by name; times are microseconds.
Figures = dict[str, float]

#: Seconds that a consumer or producer waits for word of the broker at a time.
_WAIT: Final = 0.002
#: Part of a latency run whose first messages are not counted.
_WARM: Final = 0.2
#: Deliveries that are on their way in fan-out, at most: of each message one to each subscriber.
MAX_DELIVERIES: Final = 1_000_000
#: Messages, one in flight, that are not counted.
_WARM_ALONE: Final = 20


@dataclass(frozen=True)
class MeasurementPlan:
    """The parameters of a run's measurements: publish for `seconds`, in chunks, at most `window` messages ahead."""

    seconds: float
    producers: int
    consumers: int
    window: int
    rate: int
    size: int
    prefetch: int
    subscribers: int
    connections: int
    most: int = 5_000_000

    @property
    def chunk(self) -> int:
        """Messages that are published in one go."""
        return min(100, self.window)

    @property
    def limit(self) -> float:
        """Seconds after which a measurement is broken off."""
        return 10 * self.seconds + 3 * TIMEOUT


class Produced(NamedTuple):
    """A producer's result: the broker's processor seconds meanwhile, by part, as far as `used` for it is known; times,
    and the messages confirmed by each."""

    sent: int
    started: float
    ended: float
    cpu: float
    used: dict[str, float]
    confirms: tuple[list[float], list[int]]


class Consumed(NamedTuple):
    """A consumer's result: at each of `times`, the next of `counts` numbers of the column came."""

    column: bytes
    started: float
    settled: float
    cpu: float
    times: list[float]
    counts: list[int]


# In load processes.


def produce(driver: RunDriver, index: int, plan: MeasurementPlan, progress: LoadProgress, free: bool) -> Produced:
    """Publish as fast as consumers take it; `free`: as fast as the broker confirms."""
    producer = driver.producer(index)

    def hear(wait: float) -> int:
        progress.confirmed[index] = confirmed = producer.confirmed(wait)
        return confirmed

    def publish_first() -> None:
        producer.publish(0, 1)
        progress.sent[index] = 1
        _hear(hear, 0)

    if progress.fanout:
        progress.begin(publish_first, lambda: None)
    else:
        progress.begin()
    before = progress.read_cpu() if index == 0 else {}
    used, started = time.process_time(), time.monotonic()
    end, sent, most = started + plan.seconds, progress.sent[index], plan.most // plan.producers
    while sent < most and time.monotonic() < end:
        if not free and not progress.has_room(sent, plan.window, hear):
            break
        producer.publish(sent, plan.chunk)
        sent += plan.chunk
        progress.sent[index] = sent
        confirmed = hear(0.0)
        while sent - confirmed >= plan.window:
            confirmed = _hear(hear, confirmed)
    confirmed = hear(0.0)
    while confirmed < sent:
        confirmed = _hear(hear, confirmed)
    ended = time.monotonic()
    progress.finished[index] = 1
    cpu = time.process_time() - used
    progress.end()
    after = progress.read_cpu() if index == 0 else {}
    spent = {part: after[part] - seconds for part, seconds in before.items() if part in after}
    return Produced(sent, started, ended, cpu, spent, ([], []))


def _hear(confirmed: Callable[[float], int], before: int) -> int:
    """Wait until more than `before` are confirmed. Raises BenchError."""
    deadline = time.monotonic() + TIMEOUT
    while (now := confirmed(_WAIT)) == before:
        if time.monotonic() > deadline:
            raise BenchError(f"Nothing was confirmed for {TIMEOUT:g} s.")
    return now


def consume(driver: RunDriver, index: int, progress: LoadProgress) -> Consumed:
    """Take and acknowledge until all is there."""
    consumer = driver.consumer(index)
    progress.begin()
    columns, times, counts = [], [], []
    used = time.process_time()
    started = settled = last = time.monotonic()
    dirty = False
    while time.monotonic() - last <= (LINGER if progress.is_complete() else TIMEOUT):
        column = consumer.receive(_WAIT)
        if column:
            count = len(column) // 8
            columns.append(column)
            times.append(last := time.monotonic())
            counts.append(count)
            progress.received[index] += count
            dirty = True
        elif dirty and progress.is_complete():
            consumer.settle()
            settled, dirty = time.monotonic(), False
    consumed = Consumed(b"".join(columns), started, settled, time.process_time() - used, times, counts)
    progress.end()
    return consumed


def produce_at_rate(driver: RunDriver, index: int, plan: MeasurementPlan, progress: LoadProgress) -> Produced:
    """Publish each message when it is due, whatever the broker does, and note when each is confirmed."""
    producer = driver.producer(index)
    rate = plan.rate / plan.producers
    wanted = int(rate * plan.seconds)
    progress.begin()
    used, started = time.process_time(), time.monotonic()
    sent = confirmed = 0
    times: list[float] = []
    counts: list[int] = []
    deadline = started + plan.seconds + TIMEOUT
    while confirmed < wanted:
        now = time.monotonic()
        due = min(wanted, int((now - started) * rate) + 1)
        if due > sent:
            producer.publish(sent, due - sent)
            sent = due
            progress.sent[index] = sent
        heard = producer.confirmed(max(0.0, started + sent / rate - time.monotonic()) if sent < wanted else _WAIT)
        if heard > confirmed:
            confirmed = heard
            times.append(time.monotonic())
            counts.append(confirmed)
        elif now > deadline:
            raise BenchError(f"Nothing more was confirmed for {TIMEOUT:g} s.")
        if not driver.confirms and sent < wanted:
            time.sleep(max(0.0, started + sent / rate - time.monotonic()))
    progress.finished[index] = 1
    return Produced(sent, started, time.monotonic(), time.process_time() - used, {}, (times, counts))


def one_in_flight(driver: RunDriver, plan: MeasurementPlan) -> tuple[list[float], list[float]]:
    """Seconds from publish to confirm, and to delivery, one message at a time; both ends in one process."""
    # A producer that no other measurement has, and whose messages consumer 0 gets, by any division among consumers.
    consumer, producer = driver.consumer(0), driver.producer(plan.producers * plan.consumers)
    confirm: list[float] = []
    deliver: list[float] = []
    number = 0
    for waits_for_confirm, times in ((True, confirm), (False, deliver)):
        end = time.monotonic() + plan.seconds / 2
        while len(times) < 2 * _WARM_ALONE or time.monotonic() < end:
            began = time.monotonic()
            producer.publish(number, 1)
            number += 1
            if waits_for_confirm:
                _hear(producer.confirmed, number - 1) if driver.confirms else None
                times.append(time.monotonic() - began)
            deadline = began + TIMEOUT
            while not consumer.receive(_WAIT):
                if time.monotonic() > deadline:
                    raise BenchError("A message was never delivered.")
            if not waits_for_confirm:
                times.append(time.monotonic() - began)
                if producer.confirmed(0.0) < number:
                    _hear(producer.confirmed, number - 1)
    consumer.settle()
    return confirm[_WARM_ALONE:], deliver[_WARM_ALONE:]


def many_connections(driver: RunDriver, plan: MeasurementPlan) -> tuple[Figures, list[int]]:
    """Open many connections, and publish on all of them with one message in flight on each. Returns the figures, and
    what each has sent."""
    count, began = plan.connections, time.monotonic()
    producers = [driver.producer(index) for index in range(count)]
    opening = time.monotonic() - began
    sent, confirmed, due = [0] * count, [0] * count, [0.0] * count
    waited: list[float] = []
    with selectors.DefaultSelector() as selector:
        for index, producer in enumerate(producers):
            selector.register(producer.fileno(), selectors.EVENT_READ, index)
        started = time.monotonic()
        end = started + plan.seconds
        for index, producer in enumerate(producers):
            due[index] = time.monotonic()
            producer.publish(0, 1)
            sent[index] = 1
        while confirmed != sent:
            if not (ready := selector.select(TIMEOUT)):
                raise BenchError(f"Nothing was confirmed for {TIMEOUT:g} s.")
            for key, _ in ready:
                index = key.data
                confirmed[index] = producers[index].confirmed(0.0)
                if confirmed[index] < sent[index]:
                    continue
                now = time.monotonic()
                waited.append(now - due[index])
                if now < end:
                    due[index] = now
                    producers[index].publish(sent[index], 1)
                    sent[index] += 1
        took = time.monotonic() - started
    figures = {"opened_per_s": count / opening, "confirmed_per_s": sum(sent) / took} | _places("confirm", waited)
    for producer in producers:
        producer.close()
    return figures, sent


# In the command.


def _together(
    driver: RunDriver, plan: MeasurementPlan, progress: LoadProgress, job: Callable[..., Produced], *more: Any
) -> tuple[list[Produced], list[Consumed]]:
    """The plan's producers, which do this job, and beside them its consumers; what each has done."""
    jobs: list[LoadProcess] = [(job, (driver, n, plan, progress, *more)) for n in range(plan.producers)]
    jobs += [(consume, (driver, n, progress)) for n in range(plan.consumers)]
    results = run(jobs, plan.limit)
    return results[: plan.producers], results[plan.producers :]


def _take_all(driver: RunDriver, plan: MeasurementPlan, sent: Sequence[int]) -> list[Consumed]:
    """The plan's consumers, when all is published."""
    return _together(driver, replace(plan, producers=0), LoadProgress.after(sent, plan.consumers), produce)[1]


def throughput(driver: RunDriver, plan: MeasurementPlan, meter: CpuMeter) -> Figures:
    """Producers and consumers at full pace."""
    progress = LoadProgress(plan.producers, plan.consumers, meter=meter)
    produced, consumed = _together(driver, plan, progress, produce, False)
    sent = [one.sent for one in produced]
    started = min(one.started for one in produced)
    figures: Figures = {
        "end_to_end_per_s": sum(sent) / (max(one.settled for one in consumed) - started),
        "messages": sum(sent),
    }
    if driver.confirms:
        figures["published_per_s"] = sum(sent) / (max(one.ended for one in produced) - started)
    figures |= _cpu(produced, consumed, sum(sent))
    return figures | _wrong(driver, sent, [[one.column for one in consumed]])


def fanout(driver: FanoutDriver, plan: MeasurementPlan, meter: CpuMeter) -> Figures:
    """One producer; every subscriber gets every message. A few processes have all subscribers."""
    count, groups = plan.subscribers, min(plan.subscribers, os.cpu_count() or 1)
    plan = replace(plan, producers=1, window=max(2 * plan.chunk, min(plan.window, MAX_DELIVERIES // count)))
    firsts = [count * n // groups for n in range(groups + 1)]
    progress = LoadProgress(1, groups, fanout=True, meter=meter)
    jobs: list[LoadProcess] = [(produce, (driver, 0, plan, progress, False))]
    jobs += [
        (subscribe, (driver, first, beyond - first, n, progress)) for n, (first, beyond) in enumerate(pairwise(firsts))
    ]
    try:
        results = run(jobs, plan.limit)
    except MeasurementOverdue as error:
        raise BenchError(
            f"{error} {progress.sent[0]:,} messages were published, {progress.confirmed[0]:,} confirmed, and"
            f" {progress.consumed():,} received by all of {count:,} subscribers: the broker cannot keep up with so many"
            " here. Take fewer --subscribers, or a smaller --window."
        ) from None
    produced: Produced = results[0]
    subscribed: list[Subscribed] = results[1:]
    took = max(one.settled for one in subscribed) - produced.started
    figures: Figures = {
        "end_to_end_per_s": count * produced.sent / took, "message_ms": 1000 * took / max(1, produced.sent),
        "messages": count * produced.sent,
    }  # fmt: skip
    figures |= _cpu([produced], subscribed, count * produced.sent)
    wrong = [[column] for one in subscribed for column in one.columns]
    return figures | _wrong(driver, [produced.sent], wrong)


def _cpu(produced: Sequence[Produced], consumed: Sequence[Consumed | Subscribed], messages: int) -> Figures:
    """Microseconds of processor time a message."""
    used = {"generator": sum(one.cpu for one in (*produced, *consumed))} | produced[0].used
    return {f"{part}_cpu_us": 1e6 * seconds / max(1, messages) for part, seconds in used.items()}


def backlog(driver: RunDriver, plan: MeasurementPlan, meter: CpuMeter) -> Figures:
    """Publish with no consumer, as fast as is confirmed; then drain it.

    Where nothing is confirmed a producer would run ahead of the broker without end: it publishes what the plan's rate
    amounts to.
    """
    if not driver.confirms:
        plan = replace(plan, most=int(plan.rate * plan.seconds))
    filled, _ = _together(driver, replace(plan, consumers=0), LoadProgress(plan.producers, 0), produce, True)
    sent = [one.sent for one in filled]
    drained = _take_all(driver, plan, sent)
    took = max(one.settled for one in drained) - min(one.started for one in drained)
    figures: Figures = {"drained_per_s": sum(sent) / took, "messages": sum(sent)}
    if driver.confirms:
        began = min(one.started for one in filled)
        figures["filled_per_s"] = sum(sent) / (max(one.ended for one in filled) - began)
    return figures | _wrong(driver, sent, [[one.column for one in drained]])


def latency(driver: RunDriver, plan: MeasurementPlan, meter: CpuMeter) -> Figures:
    """Percentiles at the plan's rate, and with one message in flight."""
    confirm, deliver = run([(one_in_flight, (driver, replace(plan, seconds=plan.seconds / 2)))], plan.limit)[0]
    figures: Figures = {"deliver_alone_p50_us": 1e6 * statistics.median(deliver)}
    if driver.confirms:
        figures["confirm_alone_p50_us"] = 1e6 * statistics.median(confirm)
    progress = LoadProgress(plan.producers, plan.consumers)
    produced, consumed = _together(driver, plan, progress, produce_at_rate)
    rate = plan.rate / plan.producers
    figures |= _places("deliver", _delivered(driver, produced, consumed, rate))
    if driver.confirms:
        figures |= _places("confirm", [late for one in produced for late in _confirmed(one, rate)])
    sent = [one.sent for one in produced]
    return figures | {"messages": sum(sent)} | _wrong(driver, sent, [[one.column for one in consumed]])


def connections(driver: RunDriver, plan: MeasurementPlan, meter: CpuMeter) -> Figures:
    """Many connections, each with one message in flight."""
    figures, sent = run([(many_connections, (driver, plan))], plan.limit)[0]
    consumed = _take_all(driver, replace(plan, consumers=1), sent)
    return dict(figures) | {"messages": sum(sent)} | _wrong(driver, sent, [[one.column for one in consumed]])


def _delivered(
    driver: RunDriver, produced: Sequence[Produced], consumed: Iterable[Consumed], rate: float
) -> list[float]:
    """The latency of each message that counts, in seconds."""
    late = []
    for one in consumed:
        values = iter(positions(one.column))
        for at, count in zip(one.times, one.counts, strict=True):
            for _ in range(count):
                value = next(values) - (driver.run << 48)
                producer, position = value >> 32, value & 0xFFFFFFFF
                if 0 <= producer < len(produced) and position >= _WARM * produced[producer].sent:
                    late.append(at - produced[producer].started - position / rate)
    return late


def _confirmed(one: Produced, rate: float) -> list[float]:
    late: list[float] = []
    position = 0
    for at, count in zip(*one.confirms, strict=True):
        late += [at - one.started - n / rate for n in range(position, count) if n >= _WARM * one.sent]
        position = count
    return late


def _places(name: str, seconds: Iterable[float]) -> Figures:
    ordered = array("d", sorted(seconds))
    if not ordered:
        raise BenchError("Too few messages for percentiles: more --seconds, or a higher --rate.")
    return {
        f"{name}_{place}_us": 1e6 * ordered[int(len(ordered) * part)]
        for place, part in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999))
    }


def _wrong(driver: RunDriver, sent: Sequence[int], groups: Iterable[list[bytes]]) -> Figures:
    checks = [verify(driver.run, sent, group) for group in groups]
    names = Verified._fields if driver.ordered else Verified._fields[:-1]
    return {name: sum(getattr(check, name) for check in checks) for name in names}


#: The measurements, in their order. Only of some that are long enough the processor time is a figure.
MEASURES: Final[dict[str, Callable[[Any, MeasurementPlan, CpuMeter], Figures]]] = {
    "latency": latency,
    "throughput": throughput,
    "backlog": backlog,
    "fanout": fanout,
    "connections": connections,
}
