"""Load processes: started together, watched, ended with the run; what they share is counters in shared memory.

They come from a fork server, so they have none of the command's threads and connections. Ctrl-C ends them through the
command; when that is killed they see it and end by themselves.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import RawArray
from multiprocessing.synchronize import Barrier
from typing import Any, Final

from brokersite.rigs.bench.errors import BenchError, MeasurementOverdue
from brokersite.rigs.bench.stream import TIMEOUT
from brokersite.rigs.bench.usage import CpuMeter

#: Seconds that consumers stay after the last message, to see whether one comes twice.
LINGER: Final = 0.2
#: Seconds between two looks of a producer that waits for room.
_PAUSE: Final = 0.0003

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["brokersite.rigs.bench.measures"])

#: A function that can be imported, and its arguments.
LoadProcess = tuple[Callable[..., Any], tuple[Any, ...]]


class LoadProgress:
    """Counters of sent messages by producer and received ones by consumer; each counter has one writer.

    With `fanout` every consumer receives every message, so the slowest counts; otherwise they share them. With a
    `meter` the processor time of the broker is read at the start and at the end, when all have ended.
    """

    def __init__(self, producers: int, consumers: int, fanout: bool = False, meter: CpuMeter | None = None) -> None:
        self.sent = RawArray("q", producers)
        self.confirmed = RawArray("q", producers)
        self.received = RawArray("q", consumers)
        self.finished = RawArray("b", producers)
        self.fanout = fanout
        self.meter = meter
        self.barrier: Barrier = _context.Barrier(producers + consumers)

    @classmethod
    def after(cls, sent: Sequence[int], consumers: int) -> LoadProgress:
        """The progress of consumers that begin when producers have ended."""
        progress = cls(0, consumers)
        progress.sent = RawArray("q", list(sent))
        return progress

    def begin(self, *steps: Callable[[], None]) -> None:
        """Wait for the other load processes; then all make these steps, each when all have made the one before."""
        try:
            self.barrier.wait(TIMEOUT)
            for step in steps:
                step()
                self.barrier.wait(3 * TIMEOUT)
        except threading.BrokenBarrierError:
            raise BenchError("The load processes did not start together.") from None

    def read_cpu(self) -> dict[str, float]:
        """Processor seconds of the broker so far, by part."""
        return {} if self.meter is None else self.meter.read()

    def end(self) -> None:
        """Stay until the others have ended too, if the processor time is read then."""
        if self.meter is not None:
            with suppress(threading.BrokenBarrierError):
                self.barrier.wait()

    def consumed(self) -> int:
        """Messages that the consumers have received."""
        return min(self.received) if self.fanout else sum(self.received)

    def has_room(self, mine: int, window: int, meanwhile: Callable[[float], int]) -> bool:
        """Wait until a producer that has sent `mine` messages may send more. False when consumers stand still."""
        seen, since = self.consumed(), time.monotonic()
        while mine * len(self.sent) - self.consumed() >= window:
            meanwhile(0.0)
            time.sleep(_PAUSE)
            if self.consumed() != seen:
                seen, since = self.consumed(), time.monotonic()
            elif time.monotonic() - since > TIMEOUT:
                return False
        return True

    def is_complete(self) -> bool:
        """Whether all that will be sent has been received."""
        return all(self.finished) and self.consumed() >= sum(self.sent)


def run(jobs: Sequence[LoadProcess], seconds: float) -> list[Any]:
    """Run each job in a process of its own; the results, in order.

    When one fails, `seconds` are over or the caller is interrupted, all are ended. Raises BenchError.
    """
    pipes: list[Connection] = []
    processes = []
    answers: dict[Connection, Any] = {}
    deadline = time.monotonic() + seconds
    try:
        for function, arguments in jobs:
            ours, theirs = _context.Pipe(duplex=False)
            process = _context.Process(target=_work, args=(theirs, function, arguments), daemon=True)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        waiting = list(pipes)
        while waiting:
            ready = multiprocessing.connection.wait(waiting, max(0.0, deadline - time.monotonic()))
            if not ready:
                raise MeasurementOverdue(f"The measurement was not over after {seconds:g} s, and was broken off.")
            for pipe in ready:
                assert isinstance(pipe, Connection)
                waiting.remove(pipe)
                answers[pipe] = _answer(pipe)
        return [answers[pipe] for pipe in pipes]
    finally:
        for process in processes:
            process.join(0.0 if len(answers) < len(pipes) else 2.0)
            if process.is_alive():
                process.kill()
            process.join()


def _answer(pipe: Connection) -> Any:
    try:
        problem, answer = pipe.recv()
    except EOFError:
        raise BenchError("A load process was killed.") from None
    if problem is not None:
        raise BenchError(problem)
    return answer


def _work(pipe: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command ends its load processes itself
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        pipe.send((None, function(*arguments)))
    except BenchError as error:
        pipe.send((str(error), None))
    except BaseException:
        pipe.send(("A load process failed:\n" + traceback.format_exc(), None))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)
