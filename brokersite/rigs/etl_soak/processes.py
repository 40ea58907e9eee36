"""The broker and its load, as child processes. All are tied to this one: when it is killed they end by themselves."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, Queue
from typing import IO

from brokersite.rigs.etl_soak.errors import SoakBroken
from queues import childprocess

#: The module of the clients; what knows the queues does not know the protocols.
LOAD = "brokersite.rigs.torture.load"
KEY = "soak-key"
#: Seconds to start, and to end when asked to.
START, STOP = 120.0, 30.0


class SoakProcess:
    """A process that is told things on its standard input and says others on its output."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str], directory: Path) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        self._lines: Queue[str | None] = Queue()
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                childprocess.command(*command), env=dict(environment),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True,
            )  # fmt: skip
        assert self.process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self.process.stdout,), daemon=True)
        self._reader.start()

    def _read(self, output: IO[str]) -> None:
        with output:
            for line in output:
                self._lines.put(line.strip())
        self._lines.put(None)

    def line(self) -> str:
        """The next line that it says. Raises SoakBroken."""
        try:
            line = self._lines.get(timeout=START)
        except Empty:
            line = None
        if line is None:
            raise SoakBroken(f"{self.name} did not start; its log ends with: {self.last_words}")
        return line

    @property
    def last_words(self) -> str:
        """The last line of its log."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def check(self) -> None:
        """Raise SoakBroken if it has ended without being asked to."""
        if (status := self.process.poll()) is not None:
            raise SoakBroken(f"{self.name} ended with status {status}; its log ends with: {self.last_words}")

    def tell(self, text: str) -> None:
        self.check()
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """Have it end: kindly, then by force."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(STOP)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join(STOP)


class Broker(SoakProcess):
    """`manage.py runwire` on ports of its own."""

    def __init__(self, environment: Mapping[str, str], directory: Path, sspq_queue: str) -> None:
        listeners = [word for name in ("overhop", "blipmq", "sspq") for word in (f"--{name}", "127.0.0.1:0")]
        command = ["brokersite", "runwire", *listeners, "--sspq-queue", sspq_queue]
        super().__init__("broker", command, environment, directory)
        self.ports: dict[str, int] = {}
        while (line := self.line()) != "ready":
            name, _, address = line.partition(" ")
            self.ports[name] = int(address.rpartition(":")[2])

    def end(self) -> None:
        self.process.terminate()
        super().end()


class LoadProcesses:
    """Clients of all protocols: some whose pace is always given, and some who go as fast as they can when told so."""

    def __init__(self, environment: Mapping[str, str], directory: Path, ports: Mapping[str, int], fast: int) -> None:
        kinds = ["mixed", *("blipmq" for _ in range(fast))]
        self.children = [
            SoakProcess(
                f"load-{n}",
                [LOAD, json.dumps({"kind": kind, "name": f"soak-topic-{n}", "key": KEY, **ports})],
                environment, directory,
            )
            for n, kind in enumerate(kinds)
        ]  # fmt: skip
        ready = [json.loads(child.line())["ready"] for child in self.children]
        #: The subscriptions that acknowledge everything, and those that forget some.
        self.steady = [subscriptions[0] for subscriptions in ready[1:]]
        self.forgetful = [subscriptions[1] for subscriptions in ready[1:]]

    def pace(self, rate: float) -> None:
        """Set the rate of all producers, in messages a second, about; each one of a topic is stored twice."""
        mixed, *fast = self.children
        mixed.tell(str(0.4 * rate))
        for child in fast:
            child.tell(str(0.3 * rate / len(fast)))

    def full(self) -> None:
        """Let BlipMQ's producers go as fast as the broker takes; the others stay at their pace."""
        for child in self.children[1:]:
            child.tell("full")

    def check(self) -> None:
        for child in self.children:
            child.check()

    def end(self) -> None:
        for child in self.children:
            child.end()


@contextmanager
def ending(child: Broker | LoadProcesses) -> Iterator[None]:
    """End `child` with this context."""
    try:
        yield
    finally:
        child.end()
