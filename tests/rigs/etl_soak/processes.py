"""The broker and its load, as child processes. They end with this one, also when it is killed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from brokersite.rigs.process import RigProcess
from queues.processes import childprocess

#: The module of the clients; what knows the queues does not know the protocols.
LOAD = "tests.rigs.etl_soak.load"
KEY = "soak-key"


class Broker(RigProcess):
    """`manage.py runwire` on ports of its own."""

    def __init__(self, environment: Mapping[str, str], directory: Path, sspq_queue: str) -> None:
        listeners = [word for name in ("overhop", "blipmq", "sspq") for word in (f"--{name}", "127.0.0.1:0")]
        command = childprocess.command("brokersite", "runwire", *listeners, "--sspq-queue", sspq_queue)
        super().__init__("broker", command, directory / "broker.log", environment)

    def wait_ready(self) -> dict[str, int]:
        """Wait until it accepts; its ports by protocol. Raises ProcessFailed."""
        self.wait_for("^ready$")
        return {name: int(port) for name, port in re.findall(r"^(\w+) 127.0.0.1:(\d+)$", self.output, re.MULTILINE)}


class LoadGenerator(RigProcess):
    """Clients of BlipMQ, or a mix of protocols, whose pace is told to them."""

    def __init__(
        self, environment: Mapping[str, str], directory: Path, kind: str, name: str, ports: Mapping[str, int]
    ) -> None:
        command = childprocess.command(LOAD, json.dumps({"kind": kind, "name": name, "key": KEY, **ports}))
        super().__init__(f"load {name}", command, directory / f"{name}.log", environment)

    def wait_ready(self) -> list[int]:
        """Wait until it has begun; its subscriptions. Raises ProcessFailed."""
        subscriptions: list[int] = json.loads(self.wait_for(r'^\{"ready".*\}$'))["ready"]
        return subscriptions


class LoadProcesses:
    """Clients of all protocols: some whose pace is always given, and some who go as fast as they can when told so."""

    def __init__(
        self, stack: ExitStack, environment: Mapping[str, str], directory: Path, ports: Mapping[str, int], fast: int
    ) -> None:
        """Start them until the stack ends. Raises ProcessFailed."""
        kinds = ["mixed", *("blipmq" for _ in range(fast))]
        self.children = [
            stack.enter_context(LoadGenerator(environment, directory, kind, f"soak-topic-{n}", ports))
            for n, kind in enumerate(kinds)
        ]
        ready = [child.wait_ready() for child in self.children]
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
