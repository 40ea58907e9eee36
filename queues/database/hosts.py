"""Which of a database's hosts is the primary. Every part that connects to several hosts asks here.

A primary that was replaced may run on and take writes: its PostgreSQL lives, and only the program that manages it is
gone. What it confirms then is lost. So the hosts are compared, and the one that takes writes and has the highest
timeline is the primary. The highest timeline that was seen is remembered, by other processes of this machine too: a
host with a lower one is never used again. A thread asks the hosts every few seconds as long as the process lives.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

#: Seconds that one host of several may take to answer before it is passed over.
NEXT_HOST: Final = 3
#: Seconds between two looks at the hosts; for which an answer holds; that other hosts have once one takes writes.
LOOK: Final = 2.0
FRESH: Final = 5.0
GRACE: Final = 1.5
#: Of libpq's error for a host that does not answer.
SILENT: Final = "timeout expired"
#: `target_session_attrs` of a connection that wants the primary.
WRITABLE: Final = ("", "read-write", "primary")
#: The names of libpq's parameters.
PARAMETERS: Final = frozenset(option.keyword.decode() for option in pq.Conninfo.get_defaults())

SYSTEM: Final = "select system_identifier from pg_control_system()"
STATE: Final = (
    "select has_function_privilege('pg_control_system()', 'execute'),"
    " case when not pg_is_in_recovery() then left(pg_walfile_name(pg_current_wal_lsn()), 8) end"
)

logger = logging.getLogger(__name__)


class Host(NamedTuple):
    """One of the hosts, by libpq's parameters of these names; empty: its default."""

    host: str
    port: str
    hostaddr: str

    def __str__(self) -> str:
        return f"{self.host or self.hostaddr}:{self.port or '5432'}"

    @property
    def parameters(self) -> dict[str, str | None]:
        return {"host": self.host or None, "port": self.port or None, "hostaddr": self.hostaddr or None}


class Sight(NamedTuple):
    """What a host has answered. `error`: why it is no primary."""

    host: Host
    system: int | None = None
    timeline: int = 0
    error: str = ""


def is_here(host: str) -> bool:
    """Whether a host of libpq's is this machine: a socket, or a loopback address."""
    if not host or host.startswith(("/", "@")) or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def hosts_of(given: Mapping[str, Any]) -> tuple[Host, ...]:
    """The hosts of a connection that wants the primary of several; empty when it names one, or any will do."""
    if str(given.get("target_session_attrs") or "") not in WRITABLE:
        return ()
    columns = [str(given.get(name) or "").split(",") for name in Host._fields]
    count = max(len(columns[0]), len(columns[2]))
    if count == 1 or any(len(column) not in (1, count) for column in columns):
        return ()
    return tuple(map(Host, *(column * count if len(column) == 1 else column for column in columns)))


class Primary(NamedTuple):
    """The host to connect to, and its timeline."""

    host: Host
    timeline: int


def defaults_for_hosts(given: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults for a connection to several hosts, `postgresql://user:password@one,two/name`: only a host that takes
    writes is used, and a silent one costs :data:`NEXT_HOST` seconds. Empty for one host."""
    if "," not in str(given.get("host") or given.get("hostaddr") or ""):
        return {}
    defaults = {"target_session_attrs": "read-write", "connect_timeout": NEXT_HOST}
    return {name: value for name, value in defaults.items() if not given.get(name)}


#: Gives the directory where processes of this machine remember timelines; None: they do not.
directory: Callable[[], Path] | None = None


def _file(hosts: tuple[Host, ...], system: int | None) -> Path | None:
    """Where the highest timeline of a system on these hosts is remembered."""
    if directory is None or system is None:
        return None
    return directory() / f"{system}-{sha256(' '.join(sorted(map(str, hosts))).encode()).hexdigest()[:12]}"


class Cluster:
    """The hosts of one database, and what this process knows of them. Any thread may call its methods."""

    def __init__(self, hosts: tuple[Host, ...], given: Mapping[str, Any]) -> None:
        self._hosts = hosts
        own = {name: value for name, value in given.items() if name in PARAMETERS and value not in (None, "")}
        limit = min(int(own.get("connect_timeout") or NEXT_HOST), NEXT_HOST)
        self._parameters = own | {
            "target_session_attrs": "any", "connect_timeout": limit, "application_name": "fivewire hosts",
            "tcp_user_timeout": NEXT_HOST * 1000,
        }  # fmt: skip
        #: The system whose timelines are compared; the highest timeline that was seen.
        self._system: int | None = None
        self.timeline = 0
        #: Hosts that take writes although they were replaced.
        self.replaced: tuple[Host, ...] = ()
        self._primary: Primary | None = None
        self._looked_at = -FRESH
        self._sights: dict[Host, Sight] = {}
        self.forget_threads()

    def forget_threads(self) -> None:
        """This process is a fork: it has none of its parent's threads."""
        self._lock = threading.Lock()
        self._asking: set[Host] = set()
        self._watched = False
        self._hurry = threading.Event()

    # Asked by those who connect.

    def primary(self, fresh: bool = False) -> Primary:
        """The primary. `fresh`: as the hosts are now. Raises psycopg.OperationalError when there is none."""
        found = self._primary
        if fresh or found is None or time.monotonic() - self._looked_at > FRESH:
            with self._lock:
                self._look()
                found = self._primary
        self._begin_to_watch()
        if found is None:
            reasons = "; ".join(f"{host}: {one.error}" for host, one in self._sights.items())
            raise psycopg.OperationalError(f"no host is the primary: {reasons}")
        return found

    def look_soon(self) -> None:
        """Look at the hosts now, since something about the primary is not as it should be."""
        self._hurry.set()

    # Looking.

    def _begin_to_watch(self) -> None:
        if self._watched:
            return
        with self._lock:
            begins, self._watched = not self._watched, True
        if begins:
            threading.Thread(target=_watch, args=(self,), name="hosts", daemon=True).start()

    def wait(self) -> None:
        """Wait until it is time for another look."""
        self._hurry.wait(LOOK)
        self._hurry.clear()

    def look(self) -> None:
        """Look at the hosts."""
        with self._lock:
            self._look()

    def _look(self) -> None:
        answers: queue.SimpleQueue[Sight] = queue.SimpleQueue()
        waiting = [host for host in self._hosts if host not in self._asking]
        sights = {host: Sight(host, error=SILENT) for host in self._hosts}
        for host in waiting:
            self._asking.add(host)
            threading.Thread(target=self._ask, args=(host, answers), name="host", daemon=True).start()
        deadline, left = time.monotonic() + NEXT_HOST + 1, len(waiting)
        while left and (seconds := deadline - time.monotonic()) > 0:
            try:
                sight = answers.get(timeout=seconds)
            except queue.Empty:
                break
            sights[sight.host] = sight
            left -= 1
            if not sight.error:
                deadline = min(deadline, time.monotonic() + GRACE)
        self._conclude(sights)

    def _ask(self, host: Host, answers: queue.SimpleQueue[Sight]) -> None:
        try:
            sight = look_at(host, self._parameters)
        except Exception as error:
            sight = Sight(host, error=" ".join(str(error).split()) or type(error).__name__)
        self._asking.discard(host)
        answers.put(sight)

    def _conclude(self, sights: dict[Host, Sight]) -> None:
        """Choose the primary. Another system, such as a restored copy, is one only while no host of this one writes."""
        writing = [sight for sight in sights.values() if not sight.error]
        system = self._system or next((sight.system for sight in writing if sight.system), None)
        same = [sight for sight in writing if sight.system in (None, system)] or writing[:1]
        now = self._primary.host if self._primary else None
        best = max(same, key=lambda sight: (sight.timeline, sight.host == now), default=None)
        if best is not None and best.system not in (None, system):
            self.timeline = 0
        if best is not None and self._system is None:
            self.timeline = self._recall(best.system)
        if best is None or best.timeline < self.timeline:
            if now is None or SILENT not in sights[now].error:  # else it may be slow, and those who connect find out
                self._primary = None
        else:
            self._go_to(best)
        replaced = tuple(sight.host for sight in same if sight.timeline < self.timeline)
        where = f" ({file})" if (file := _file(self._hosts, system)) else ""
        for host in replaced:
            error = f"it was replaced: its timeline is {sights[host].timeline}, and {self.timeline} was seen{where}"
            sights[host] = sights[host]._replace(error=error)
            if host not in self.replaced:
                logger.error("%s takes writes although %s; what is stored there is lost", host, error)
        self.replaced, self._sights, self._looked_at = replaced, sights, time.monotonic()

    def _go_to(self, best: Sight) -> None:
        if self.timeline and best.timeline > self.timeline:
            before = "" if self._primary is None else f" {self._primary.host}"
            logger.warning("the primary%s was replaced by %s, timeline %d", before, best.host, best.timeline)
        self._system = best.system or self._system
        self.timeline = best.timeline
        self._primary = Primary(best.host, best.timeline)
        self._remember()

    def _recall(self, system: int | None) -> int:
        """The highest timeline that processes of this machine have seen; 0 if none is known."""
        try:
            return 0 if (file := _file(self._hosts, system)) is None else int(file.read_text())
        except (OSError, ValueError):
            return 0

    def _remember(self) -> None:
        file = _file(self._hosts, self._system)
        if file is not None and self.timeline > self._recall(self._system):
            with contextlib.suppress(OSError):  # this process remembers it
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(str(self.timeline))


def look_at(host: Host, parameters: Mapping[str, Any]) -> Sight:
    """Ask one host. Raises psycopg.Error."""
    with psycopg.connect(**{**parameters, **host.parameters}, autocommit=True, prepare_threshold=None) as connection:
        shown, timeline = connection.execute(STATE).fetchone() or (False, None)
        if timeline is None:
            return Sight(host, error="session is read-only: it is a standby")
        row = connection.execute(SYSTEM).fetchone() if shown else None
    return Sight(host, row[0] if row else None, int(timeline, 16))


def _watch(cluster: Cluster) -> None:
    """Look at a cluster's hosts for ever."""
    while True:
        cluster.wait()
        try:
            cluster.look()
        except Exception:
            logger.exception("the database's hosts cannot be compared")


_clusters: dict[tuple[tuple[Host, ...], str], Cluster] = {}


def _forget_threads() -> None:
    for cluster in _clusters.values():
        cluster.forget_threads()


os.register_at_fork(after_in_child=_forget_threads)


def cluster_of(given: Mapping[str, Any] | str) -> Cluster | None:
    """The cluster that a connection's parameters name; None when they name one host."""
    parameters: Mapping[str, Any] = conninfo_to_dict(given) if isinstance(given, str) else given
    hosts = hosts_of(parameters)
    if not hosts:
        return None
    key = hosts, str(parameters.get("dbname") or "")
    return _clusters.get(key) or _clusters.setdefault(key, Cluster(hosts, parameters))


class Session:
    """A connection's primary, by its timeline when it was chosen."""

    __slots__ = ("_cluster", "_timeline")

    def __init__(self, cluster: Cluster | None = None, timeline: int = 0) -> None:
        self._cluster = cluster
        self._timeline = timeline

    @property
    def outdated(self) -> bool:
        """Whether the connection's primary was replaced by another one."""
        return self._cluster is not None and self._cluster.timeline > self._timeline

    def look_soon(self) -> None:
        """Look at the hosts at once."""
        if self._cluster is not None:
            self._cluster.look_soon()


def choose(given: Mapping[str, Any], fresh: bool = False) -> tuple[dict[str, Any], Session]:
    """A connection's parameters with the primary as their only host, where they name several. Raises
    psycopg.OperationalError when no host is the primary."""
    cluster = cluster_of(given)
    if cluster is None:
        return dict(given), Session()
    primary = cluster.primary(fresh)
    host = primary.host.parameters
    kept = defaults_for_hosts(given) | {name: value for name, value in given.items() if name not in host}
    at = {name: value for name, value in host.items() if value is not None}
    return kept | at, Session(cluster, primary.timeline)


def at_primary(given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters alone, for a connection that is soon closed."""
    return choose(given)[0]


async def choose_conninfo(conninfo: str) -> tuple[str, Session]:
    """The same for a connection string, beside an event loop, as the hosts are now."""
    if cluster_of(conninfo) is None:
        return conninfo, Session()
    parameters, session = await asyncio.to_thread(choose, conninfo_to_dict(conninfo), True)
    return make_conninfo(**parameters), session


def warnings() -> list[str]:
    """Warnings for operators, one sentence each, without names of hosts."""
    if not any(cluster.replaced for cluster in tuple(_clusters.values())):
        return []
    return ["A primary that was replaced still takes writes, and what is stored there is lost: stop it."]
