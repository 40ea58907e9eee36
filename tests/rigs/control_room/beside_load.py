"""The cost of an open admin to a broker under full load::

    python -m tests.rigs.control_room.beside_load --rounds 7 --seconds 8

A listener, its clients (a producer and two subscribers of BlipMQ, as fast as they can) and the site run on a database
made for it, filled like that of `bench`. Phases follow each other in turns: the load alone; beside one browser that
opens every page in a loop, without a pause; alone; beside ten browsers that have the front page open, which refreshes
itself. Each phase with browsers is compared with the mean of those alone before and after it.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil
import psycopg

from brokersite.rigs.process import HOST, RigProcess, free_ports
from queues.processes import childprocess
from queues.processes.processors import seconds_of
from tests.rigs.control_room.prepared import filled_database, parser_of, tell

NAME: Final = "fivewire_beside_load"
#: Browsers with the front page, and seconds between two refreshes of one.
BROWSERS, REFRESH = 10, 2.0
#: Refreshes of each whose cost is measured without a load.
REFRESHES = 15
#: Seconds that the load, and then a phase, has before it is measured.
WARM, BEGIN = 5.0, 1.0
#: Phases of a round.
ROUND: Final = ("alone", "pages", "alone", "fronts")

Visit = Callable[["Browser", threading.Event], int]


class Browser:
    """A person who is logged in, over one connection."""

    def __init__(self, port: int, session: str) -> None:
        self._connection = http.client.HTTPConnection(HOST, port, timeout=60)
        self._headers = {"Cookie": f"sessionid={session}"}

    def get(self, address: str) -> bytes:
        """Open a page, or be sent elsewhere: the store's nodes and workers are gone once a real node runs."""
        self._connection.request("GET", address, headers=self._headers)
        answer = self._connection.getresponse()
        body = answer.read()
        assert answer.status < 400, (address, answer.status)
        return body

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def open_all(addresses: list[str]) -> Visit:
    """Open one page after the other, until told to end; how many those were. The next phase goes on with the next."""
    following = itertools.cycle(addresses)

    def visit(browser: Browser, ended: threading.Event) -> int:
        count = 0
        while not ended.is_set():
            browser.get(next(following))
            count += 1
        return count

    return visit


def watch_front(browser: Browser, ended: threading.Event) -> int:
    """Keep the front page open, as its script does; how often it was refreshed."""
    browser.get("/admin/")
    versions: dict[str, str] = {}
    count = 0
    while not ended.wait(REFRESH):
        query = "&".join(f"{name}={version}" for name, version in versions.items())
        changed = json.loads(browser.get(f"/admin/state/?{query}"))
        versions |= {name: section["version"] for name, section in changed.items()}
        count += 1
    return count


@dataclass(frozen=True, slots=True)
class LoadPhase:
    """Messages settled and requests answered a second, and the share of a processor that the web server had."""

    messages: float
    requests: float
    processor: float


@dataclass(slots=True)
class SiteUnderLoad:
    """The site and the load under test: its port and process, a user's session, the processor seconds of a page and of
    a refresh of the front page in the web server and in PostgreSQL, a count of settled messages."""

    port: int
    site: psutil.Process
    session: str
    cost: tuple[float, float]
    refresh_cost: tuple[float, float]
    settled: Callable[[], int]
    phases: dict[str, list[LoadPhase]] = field(default_factory=lambda: {kind: [] for kind in ROUND})

    def measure(self, kind: str, visits: list[Visit], seconds: float) -> None:
        """A phase of so many seconds, beside a browser for each visit."""
        opened = time.monotonic()
        with browsing(visits, self.port, self.session) as counts:
            time.sleep(BEGIN)
            used, settled, began = processor_time(self.site), self.settled(), time.monotonic()
            time.sleep(seconds)
            passed = time.monotonic() - began
            messages, processor = (self.settled() - settled) / passed, (processor_time(self.site) - used) / passed
        if not all(counts):
            raise SystemExit("The site has refused a browser.")
        self.phases[kind].append(LoadPhase(messages, sum(counts) / (time.monotonic() - opened), processor))

    def ratios(self, kind: str) -> list[float]:
        """The pace of each phase of a kind, to that of the load alone before and after it."""
        alone, place = [phase.messages for phase in self.phases["alone"]], ROUND.index(kind) // 2
        return [
            phase.messages / statistics.mean(alone[2 * n + place : 2 * n + place + 2])
            for n, phase in enumerate(self.phases[kind])
        ]


@contextmanager
def stage(alias: str, session: str, addresses: list[str]) -> Iterator[SiteUnderLoad]:
    """A listener under load, and the site."""
    from brokersite.rigs.etl.scratch import environment, scratch_directory
    from queues.database.parameters import connection_parameters
    from queues.operations.keys import create_key
    from tests.rigs.etl_soak.processes import KEY, Broker, LoadGenerator

    create_key("load", key=KEY)
    with ExitStack() as stack:
        directory = stack.enter_context(scratch_directory("fivewire-beside-load-"))
        given = environment(alias, directory)
        ports = stack.enter_context(Broker(given, directory, "letters")).wait_ready()
        load = stack.enter_context(LoadGenerator(given, directory, "blipmq", "beside", ports))
        load.wait_ready()

        database = stack.enter_context(psycopg.connect(**connection_parameters(alias), autocommit=True))
        backend = database.info.backend_pid
        server = psutil.Process(backend).parent() if psutil.pid_exists(backend) else None
        with serving(directory, given | {"BROKER_ADMIN_BUSY_PERCENT": "100"}) as (port, site):
            cost = _cost(addresses, session, port, site, server)
            refresh_cost = _refresh_cost(session, port, site, server)
        port, site = stack.enter_context(serving(directory, given))
        load.tell("full")
        time.sleep(WARM)
        yield SiteUnderLoad(port, site, session, cost, refresh_cost, lambda: _settled(database))


@contextmanager
def serving(directory: Path, environment: Mapping[str, str]) -> Iterator[tuple[int, psutil.Process]]:
    """The site under daphne; its port and its process."""
    (port,) = free_ports(1)
    options = ["-b", HOST, "-p", str(port), "-v", "0", "--access-log", os.devnull]
    command = childprocess.command("daphne", *options, "brokersite.asgi:application")
    with RigProcess("daphne", command, directory / "daphne.log", environment) as server:
        server.wait_listening(port)
        yield port, psutil.Process(server.pid)


def _cost(
    addresses: list[str], session: str, port: int, site: psutil.Process, server: psutil.Process | None
) -> tuple[float, float]:
    """The mean of all pages; the server's sessions are its children, also those that have ended."""
    with closing(Browser(port, session)) as browser:
        for address in addresses:  # templates are compiled, connections opened
            browser.get(address)
        before = processor_time(site), processor_time(server)
        for address in addresses:
            browser.get(address)
    used = processor_time(site) - before[0], processor_time(server) - before[1]
    return used[0] / len(addresses), used[1] / len(addresses)


def _refresh_cost(session: str, port: int, site: psutil.Process, server: psutil.Process | None) -> tuple[float, float]:
    """The mean of the refreshes of ten browsers that have the front page open, without a load. What the site and the
    listener use meanwhile without them does not count."""

    def used() -> tuple[float, float]:
        before = processor_time(site), processor_time(server)
        time.sleep(REFRESHES * REFRESH)
        return processor_time(site) - before[0], processor_time(server) - before[1]

    idle = used()
    with browsing([watch_front] * BROWSERS, port, session):
        time.sleep(REFRESH)  # the pages are open
        watched = used()
    count = REFRESHES * BROWSERS
    return (watched[0] - idle[0]) / count, (watched[1] - idle[1]) / count


def processor_time(process: psutil.Process | None) -> float:
    """Processor seconds of a process, and of its children, also those that have ended."""
    if process is None:
        return 0.0
    return float(sum(process.cpu_times()[2:4])) + seconds_of([process, *process.children()])


@contextmanager
def browsing(visits: Sequence[Visit], port: int, session: str) -> Iterator[list[int]]:
    """A browser for each visit, until the context ends; the pages that each has opened are counted then."""
    ended, counts = threading.Event(), [0] * len(visits)

    def browse(n: int) -> None:
        with closing(Browser(port, session)) as browser:
            counts[n] = visits[n](browser, ended)

    threads = [threading.Thread(target=browse, args=(n,)) for n in range(len(visits))]
    for thread in threads:
        thread.start()
    try:
        yield counts
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def _settled(database: psycopg.Connection[tuple[int]]) -> int:
    [(count,)] = database.execute(
        "select ((select sum(settled) from queues_queuecount)"
        " + (select coalesce(sum(settled), 0) from queues_queuetally))::bigint"
    ).fetchall()
    return count


def main() -> None:
    """Measure, and print the ratios."""
    parser = parser_of("Measure what looking at the admin costs a load.", messages=200_000)
    parser.add_argument("--rounds", type=int, default=7, help="with 0, only the costs are measured")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each phase")
    given = parser.parse_args()
    with filled_database(NAME, given) as alias:
        session, addresses = _log_in()
        with stage(alias, session, addresses) as run:
            _say_costs(run)
            if not given.rounds:
                return
            visits: dict[str, list[Visit]] = {
                "alone": [], "pages": [open_all(addresses)], "fronts": [watch_front] * BROWSERS
            }
            for turn in range(given.rounds):
                tell(f"round {turn + 1} of {given.rounds}")
                for kind in ROUND:
                    run.measure(kind, visits[kind], given.seconds)
            run.measure("alone", [], given.seconds)
    _report(run, len(addresses))


def _log_in() -> tuple[str, list[str]]:
    """A session of a user who may do everything, and the addresses of all pages that are only opened."""
    from django.contrib.auth.models import User
    from django.test import Client

    from tests.rigs.control_room.pages import admin_pages

    user, client = User.objects.create_superuser("bench"), Client()
    client.force_login(user)
    addresses = [page.address for page in admin_pages(user) if page.form is None and page.status == 200]
    return client.cookies["sessionid"].value, addresses


def _say_costs(run: SiteUnderLoad) -> None:
    for words, cost in {"a page": run.cost, f"a refresh of one of {BROWSERS} front pages": run.refresh_cost}.items():
        here, database = (f"{1000 * seconds:.1f} ms" for seconds in cost)
        print(f"{words}: {here} of processor time in the web server, {database} in PostgreSQL", flush=True)


def _report(run: SiteUnderLoad, pages: int) -> None:
    alone = [phase.messages for phase in run.phases["alone"]]
    print(f"alone: {statistics.median(alone):,.0f} messages/s ({min(alone):,.0f} to {max(alone):,.0f})")
    for kind, words in {"pages": f"every one of {pages} pages in a loop", "fronts": "ten front pages"}.items():
        ratios, phases = run.ratios(kind), run.phases[kind]
        print(
            f"beside {words}: {statistics.median(ratios):.3f} of it ({min(ratios):.3f} to {max(ratios):.3f}); "
            f"{statistics.median(phase.requests for phase in phases):.1f} requests/s, "
            f"{statistics.median(phase.processor for phase in phases):.1%} of a processor in the web server"
        )


if __name__ == "__main__":
    main()
