"""Subscribers of fan-out: a thousand connections in a few processes, each with a loop over many sockets.

A subscriber asks for what the producer knows to be confirmed and it has not received, so that none asks in vain. What
comes is compared with the numbers that should come, as bytes; only of subscribers that got anything else the numbers
are kept.
"""

from __future__ import annotations

import resource
import selectors
import time
from typing import Final, NamedTuple

from brokersite.rigs.bench.columns import WIDTH, numbers
from brokersite.rigs.bench.drivers import FanoutDriver
from brokersite.rigs.bench.errors import BenchError
from brokersite.rigs.bench.processes import LINGER, LoadProgress
from brokersite.rigs.bench.stream import TIMEOUT

#: Seconds to the next look at what is confirmed, when nothing comes.
_LOOK: Final = 0.001
#: Seconds to the next question after one in vain, for each subscriber of the process: all of them ask so often that it
#: is no load.
_IN_VAIN: Final = 0.001
#: File descriptors that a process needs besides its connections.
_OTHER_FILES: Final = 64
_MAX_EXPECTED: Final = 1000


class Subscribed(NamedTuple):
    """The result of a process of subscribers: when the broker had taken the last acknowledgement, seconds of the
    processor, and the numbers that those got who did not get exactly what they should."""

    settled: float
    cpu: float
    columns: list[bytes]


def subscribe(driver: FanoutDriver, first: int, count: int, index: int, progress: LoadProgress) -> Subscribed:
    """Be the subscribers from `first` on: take and acknowledge until each has everything. Raises BenchError."""
    allow_files(count)
    group = _Group(driver, first, count, index, progress)
    progress.begin(group.receive_first, group.ask_once)
    used = time.process_time()
    while not group.note():
        group.turn()
    for consumer in group.consumers:
        consumer.settle()
    settled, used = time.monotonic(), time.process_time() - used
    progress.end()
    group.look_again()
    return Subscribed(settled, used, group.columns)


def allow_files(connections: int) -> None:
    """Let this process open so many connections. Raises BenchError."""
    wanted = connections + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise BenchError(
            f"{connections:,} connections of a process need {wanted:,} file descriptors, and it may have {hard:,}:"
            f" raise the limit (`ulimit -n {wanted}`), or take fewer --subscribers."
        )
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class _Group:
    """The subscribers of one process, and what each has received."""

    def __init__(self, driver: FanoutDriver, first: int, count: int, index: int, progress: LoadProgress) -> None:
        self.consumers = [driver.consumer(first + n) for n in range(count)]
        self._run = driver.run
        self._index = index
        self._progress = progress
        self._counts = [0] * count
        #: Those that ask for nothing now, and from when on (monotonic) they may.
        self._idle = dict.fromkeys(range(count), 0.0)
        #: The parts of what those got who did not get what they should.
        self._others: dict[int, list[bytes]] = {}
        #: By place and number, the numbers that should come.
        self._expected: dict[tuple[int, int], bytes] = {}
        self._last = time.monotonic()
        self._selector = selectors.DefaultSelector()
        for n, consumer in enumerate(self.consumers):
            self._selector.register(consumer.fileno(), selectors.EVENT_READ, n)

    def receive_first(self) -> None:
        """Take the first message, which is published meanwhile: then the broker knows of each subscriber."""
        self._last = time.monotonic()
        while min(self._counts) < 1:
            self.turn()

    def ask_once(self) -> None:
        """Let each ask again: those that have asked just now are given messages at once."""
        for consumer in self.consumers:
            consumer.ask(1)
        for n in range(len(self.consumers)):
            while not self.take(n):
                pass
        self._last = time.monotonic()

    def turn(self) -> None:
        """Ask for what is missing and take what has come. Raises BenchError when nothing comes any more."""
        self.ask()
        for key, _ in self._selector.select(_LOOK):
            self.take(key.data)
        self.check()

    def ask(self) -> None:
        """Let those ask who have not received all that is confirmed."""
        confirmed, now = self._progress.confirmed[0], time.monotonic()
        for n in [n for n, at in self._idle.items() if at <= now and self._counts[n] < confirmed]:
            del self._idle[n]
            self.consumers[n].ask(confirmed - self._counts[n])

    def take(self, n: int) -> bool:
        """Something has come for a subscriber; whether that is all that it asked for."""
        column = self.consumers[n].collect()
        if column is None:
            return False
        if column:
            self._last = time.monotonic()
            self._verify(n, bytes(column))
        self._idle[n] = 0.0 if column else time.monotonic() + _IN_VAIN * len(self.consumers)
        return True

    def _verify(self, n: int, column: bytes) -> None:
        place = self._counts[n], len(column) // WIDTH
        self._counts[n] = sum(place)
        if (expected := self._expected.get(place)) is None:
            if len(self._expected) >= _MAX_EXPECTED:
                self._expected.clear()
            expected = self._expected[place] = numbers(self._run, 0, *place)
        if n in self._others or column != expected:
            self._others.setdefault(n, [numbers(self._run, 0, 0, place[0])]).append(column)

    def note(self) -> bool:
        """Tell the producer what all have received; whether that is everything."""
        progress = self._progress
        progress.received[self._index] = least = min(self._counts)
        return bool(progress.finished[0]) and least >= progress.sent[0]

    def check(self) -> None:
        """Raises BenchError when nothing comes any more."""
        if time.monotonic() - self._last > TIMEOUT:
            confirmed = self._progress.confirmed[0]
            behind = sum(count < confirmed for count in self._counts)
            raise BenchError(
                f"Nothing was delivered for {TIMEOUT:g} s, when {behind:,} of {len(self._counts):,} subscribers of a"
                f" process had not received all of {confirmed:,} messages, the last one {min(self._counts):,}."
            )

    def look_again(self) -> None:
        """See whether something comes twice."""
        time.sleep(LINGER)
        for n, consumer in enumerate(self.consumers):
            consumer.ask(1)
            if column := consumer.collect():
                self._verify(n, bytes(column))
                consumer.settle()
            consumer.close()

    @property
    def columns(self) -> list[bytes]:
        """The deliveries of subscribers that miss some."""
        return [b"".join(parts) for parts in self._others.values()]
