"""Programs by each product's own client, side by side: what `manage.py bench clients` measures.

Each program is a process of its own. Queues, keys and servers are those of `brokersite.rigs.bench.systems`; every
message is confirmed, numbered and counted.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, fields
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final, NamedTuple

from brokersite.rigs.bench.columns import verify
from brokersite.rigs.bench.drivers import RunDriver
from brokersite.rigs.bench.drivers.jetstream import CONSUMER
from brokersite.rigs.bench.errors import BenchError
from brokersite.rigs.bench.measures import Figures, MeasurementPlan
from brokersite.rigs.bench.servers import private_rabbitmq
from brokersite.rigs.bench.stream import Endpoint, Login
from brokersite.rigs.bench.systems import Deployment, System, named_apart, open_system
from brokersite.rigs.process import RigProcess
from queues.config import extras
from queues.processes import childprocess

PROGRAM: Final = "brokersite.rigs.clients.program"
#: Seconds that a program may take.
TIMEOUT: Final = 500.0
#: Limit of messages for the measurement with one in flight.
ALONE: Final = 1000
#: Messages that a queue is filled with in one go.
FILLED: Final = 1000


@dataclass(frozen=True)
class ClientsPlan:
    """The parameters of a run: `messages` of `size` bytes, confirmed in windows of `window`, or by `tasks` at once.

    A program that consumes has at most `prefetch` messages; for `memory` there are `backlog` messages in its queue,
    and `consumers` in one process.
    """

    messages: int
    size: int
    window: int
    tasks: int
    prefetch: int
    jobs: int
    backlog: int
    consumers: int


#: The options of the command that are its fields.
OPTIONS: Final = tuple(field.name for field in fields(ClientsPlan))


class Row(NamedTuple):
    """What is measured in a turn: its figures stand under `name`, with the ratio of those of `against` to them."""

    measure: str
    name: str
    take: Callable[[], Figures]
    against: str


class Product(NamedTuple):
    """A broker's clients: the file with their programs, the package of the client in Python, the clients' names, and
    where a driver's queue is, in the words of the programs."""

    module: str
    package: str
    python: str
    javascript: str
    place: Callable[[Any], dict[str, Any]]


#: By the word of the system.
PRODUCTS: Final = {
    "blipmq": Product(
        "blipmq", "wire", "wire.blipmq.client", "@fivewire/client",
        lambda to: _address(to.endpoint) | {"key": to.key, "topic": to.topic, "subscription": to.subscriptions[0]},
    ),
    "rabbitmq": Product(
        "rabbitmq", "aio_pika", "aio-pika", "amqplib", lambda to: _login(to.login) | {"queue": to.queues[0]}
    ),
    "nats": Product(
        "nats", "nats", "nats-py", "nats.js",
        lambda to: _login(to.login) | {"stream": to.stream, "consumer": CONSUMER},
    ),
    "overhop": Product(
        "overhop", "wire", "wire.overhop.client", "@fivewire/client",
        lambda to: _address(to.endpoint) | {"queue": to.queue},
    ),
}  # fmt: skip


def python(product: Product, role: str, work: str) -> list[str]:
    """The command line of a program in Python."""
    return childprocess.command(PROGRAM, product.module, role, work)


def built_javascript(scratch: Path) -> Callable[[Product, str, str], list[str]]:
    """Build the npm package and install its peers; the command line of a program in JavaScript. Raises BenchError."""
    source = childprocess.PACKAGES / "wire" / "javascript"
    if not source.is_dir() or shutil.which("node") is None or shutil.which("npm") is None:
        raise BenchError("Programs in JavaScript need a checkout, Node.js and npm.")
    place = scratch / "javascript"
    shutil.copytree(source, place, ignore=shutil.ignore_patterns("node_modules", "dist"))
    quiet = ("--ignore-scripts", "--no-audit", "--no-fund")
    for command, cwd in (
        (("npm", "ci", *quiet), place), (("npm", "run", "build"), place), (("npm", "install", *quiet), place / "bench")
    ):  # fmt: skip
        ended = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        if ended.returncode:
            raise BenchError(f"{' '.join(command)} failed:\n{(ended.stdout + ended.stderr).strip()}")
    return lambda product, role, work: ["node", str(place / "bench" / f"{product.module}.mjs"), role, work]


class Programs:
    """Runs the programs of a product, and reads what they say."""

    def __init__(
        self, product: Product, plan: ClientsPlan, scratch: Path, command: Callable[[Product, str, str], list[str]]
    ) -> None:
        self._product = product
        self._plan = plan
        self._scratch = scratch
        self._command = command

    @contextmanager
    def running(self, driver: RunDriver, role: str, amount: int) -> Iterator[RigProcess]:
        """A program that is set up, until the context ends; what it consumes is in `column`. Raises ProcessFailed."""
        log = Path(mkdtemp(prefix=f"{self._product.module}-{role}-", dir=self._scratch)) / "log"
        column = log.with_name("column")
        column.touch()
        plan = self._plan
        work = {
            "at": self._product.place(driver), "run": driver.run, "count": amount, "size": plan.size,
            "window": plan.window, "tasks": plan.tasks, "prefetch": plan.prefetch, "consumers": plan.consumers,
            "column": str(column),
        }  # fmt: skip
        command = self._command(self._product, role, json.dumps(work))
        with RigProcess(f"the program {self._product.module} {role}", command, log, os.environ) as process:
            process.wait_for("^ready$")
            yield process

    def result(self, process: RigProcess) -> dict[str, float]:
        """Wait for the end of a program; its figures. Raises ProcessFailed, BenchError."""
        if process.wait(TIMEOUT):
            raise BenchError(f"{process.name} failed:\n{process.output.strip()}")
        found: dict[str, float] = json.loads(process.output.splitlines()[-1])
        return found

    def run(self, driver: RunDriver, role: str, amount: int) -> dict[str, float]:
        """A program from its start to its end; its figures."""
        with self.running(driver, role, amount) as process:
            return self.result(process)

    def checked(self, driver: RunDriver, consumer: RigProcess, amount: int) -> Figures:
        """Count lost, repeated and foreign messages that a program consumed. Their order is not judged: a message that
        was fetched and not reached in time comes again behind later ones."""
        found = verify(driver.run, [amount], [_column(consumer).read_bytes()])
        return {"messages": amount, "lost": found.lost, "duplicates": found.duplicates, "foreign": found.foreign}

    def stream(self, driver: RunDriver) -> Figures:
        """A program publishes, another one consumes meanwhile."""
        amount = self._plan.messages
        with self.running(driver, "consume", amount) as consumer:
            published = self.run(driver, "publish", amount)
            consumed = self.result(consumer)
        return {
            "published_per_s": amount / (published["ended"] - published["began"]),
            "end_to_end_per_s": amount / (consumed["ended"] - published["began"]),
            "publisher_cpu_us": 1e6 * published["cpu"] / amount,
            "consumer_cpu_us": 1e6 * consumed["cpu"] / amount,
        } | self.checked(driver, consumer, amount)

    def confirms(self, driver: RunDriver) -> Figures:
        """A program's tasks publish, and each awaits the confirm of every message."""
        amount = max(self._plan.tasks, self._plan.messages // 5)
        found = self.run(driver, "confirm", amount)
        return {"confirmed_per_s": amount / (found["ended"] - found["began"])}

    def alone(self, driver: RunDriver) -> Figures:
        """A program publishes and consumes, one message after the other."""
        found = self.run(driver, "alone", min(ALONE, self._plan.messages))
        return {name: found[name] for name in ("confirm_p50_us", "deliver_p50_us")}

    def memory(self, driver: RunDriver) -> Figures:
        """A program consumes a part of a long queue; another one has idle consumers."""
        plan = self._plan
        idle = self.run(driver, "idle", 0)
        _fill(driver, plan.backlog)
        consumed = self.run(driver, "consume", min(plan.messages, plan.backlog))
        return {
            "backlog_mib": consumed["memory"] / 2**20,
            "idle_mib": idle["memory"] / 2**20,
            "idle_cpu_percent": 100 * idle["cpu"] / (idle["ended"] - idle["began"]),
        }

    def jobs(self, role: str, driver: RunDriver) -> Figures:
        """A worker with a handler that does nothing but leave a line does jobs from a backlog."""
        from brokersite.rigs.celery import bench as celery

        amount = self._plan.jobs
        self.run(driver, "enqueue", amount)
        with self.running(driver, role, amount) as worker:
            pace = celery.pace(_column(worker), amount)
        lost, duplicates = celery.faults(_column(worker), amount)
        return {"jobs_per_s": pace, "messages": amount, "lost": lost, "duplicates": duplicates}


MEASURES: Final = ("stream", "confirms", "alone", "workers", "memory")
#: Without `--measure`.
USUAL: Final = MEASURES[:-1]
#: The roles of Overhop's programs that are workers, and what they are.
_WORKERS: Final = {"tasks": "Overhop, AsyncWorker", "threads": "Overhop, Worker"}


def open_rows(
    stack: ExitStack,
    words: Sequence[str],
    measures: Sequence[str],
    plan: ClientsPlan,
    reach: Deployment,
    scratch: Path,
    javascript: bool,
) -> list[Row]:
    """What is measured in each round: of the broker over BlipMQ and Overhop, and of others (`rabbitmq`, `nats=…`); with
    `javascript` the same programs, but for workers, in both languages.

    What is made for them is gone when the stack ends. Raises BenchError.
    """
    words = [_running_one(stack, word, scratch) for word in words]
    products = [PRODUCTS[word.partition("=")[0]] for word in ("blipmq", *words)]
    for product in products:
        if find_spec(product.package) is None:
            raise BenchError(f"The package {product.package} is not installed: pip install {product.python}")
    usual = MeasurementPlan(
        seconds=1, producers=1, consumers=1, window=plan.window, rate=1, size=plan.size, prefetch=plan.prefetch,
        subscribers=1, connections=1,
    )  # fmt: skip
    systems = [open_system(stack, word, usual, reach, scratch) for word in ("blipmq", *words)]
    rows = []
    for language in ("python", "javascript") if javascript else ("python",):
        command = python if language == "python" else built_javascript(scratch)
        clients = [getattr(product, language) for product in products]
        names = named_apart(f"{system.name}, {client}" for system, client in zip(systems, clients, strict=True))
        programs = [Programs(product, plan, scratch, command) for product in products]
        rows += [
            Row(measure, name, _driven(system, getattr(one, measure)), names[0])
            for measure in measures if measure != "workers"
            for name, system, one in zip(names, systems, programs, strict=True)
        ]  # fmt: skip
    if "workers" in measures:
        overhop = open_system(stack, "overhop", usual, reach, scratch)
        workers = Programs(PRODUCTS["overhop"], plan, scratch, python)
        first = next(iter(_WORKERS.values()))
        rows += [
            Row("workers", name, _driven(overhop, partial(workers.jobs, role)), first)
            for role, name in _WORKERS.items()
        ]
        rows += _celery(stack, [word for word in words if word.startswith("rabbitmq")], plan, first, scratch)
    return rows


def _running_one(stack: ExitStack, word: str, scratch: Path) -> str:
    """The same system with an address: one RabbitMQ is for its clients and for Celery's. Raises BenchError."""
    if word.partition("=")[0] not in ("rabbitmq", "nats"):
        raise BenchError(f"Clients can be compared with those of rabbitmq and nats, not with {word!r}.")
    if word != "rabbitmq":
        return word
    server = stack.enter_context(private_rabbitmq(scratch))
    return f"rabbitmq=amqp://guest:guest@127.0.0.1:{server.port}"


def _celery(stack: ExitStack, words: Sequence[str], plan: ClientsPlan, against: str, scratch: Path) -> list[Row]:
    """Celery's worker on the same brokers."""
    if problem := extras.problem("celery"):
        raise BenchError(problem)
    from brokersite.rigs.celery import bench as celery

    def taken(system: celery.CelerySystem) -> Figures:
        figures = system.measure(plan.jobs, 1, [], halves=(True,))
        return {"jobs_per_s": figures.pop("backlog_per_s")} | figures

    return [
        Row("workers", f"Celery on {system.name.partition(',')[0]}", partial(taken, system), against)
        for system in celery.open_systems(stack, words, scratch)
        if not system.confirm
    ]


def _driven(system: System, measure: Callable[[RunDriver], Figures]) -> Callable[[], Figures]:
    def take() -> Figures:
        with ExitStack() as stack:
            return measure(system.drive(stack, 1))

    return take


def _column(program: RigProcess) -> Path:
    """The file with what a program has consumed."""
    return program.log.with_name("column")


def _fill(driver: RunDriver, amount: int) -> None:
    """Publish `count` messages, and wait until they are confirmed."""
    with closing(driver.producer(0)) as producer:
        for first in range(0, amount, FILLED):
            most = min(FILLED, amount - first)
            producer.publish(first, most)
            while producer.confirmed(1.0) < first + most:
                pass


def _address(endpoint: Endpoint) -> dict[str, Any]:
    return endpoint._asdict()


def _login(login: Login) -> dict[str, Any]:
    return _address(login.endpoint) | {"user": login.user, "password": login.password, "vhost": login.vhost}
