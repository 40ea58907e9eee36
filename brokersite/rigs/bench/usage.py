"""CPU time of the processes that are measured, as far as they run on this machine and may be looked at."""

from __future__ import annotations

import psutil
from django.db import connection

from brokersite.rigs.bench.stream import Endpoint
from queues.processors import seconds_of


class CpuMeter:
    """Processor time of a broker's processes and of PostgreSQL's."""

    def __init__(self, endpoint: Endpoint, with_postgres: bool) -> None:
        self._broker = _listening(endpoint)
        self._postgres = _postmaster() if with_postgres else None

    def read(self) -> dict[str, float]:
        """Seconds used so far: `broker`, `postgresql`, as far as known."""
        used = {"broker": seconds_of(self._broker)} if self._broker else {}
        if self._postgres is not None:
            used["postgresql"] = seconds_of([self._postgres, *self._postgres.children()])
        return used


def _listening(endpoint: Endpoint) -> list[psutil.Process]:
    """The processes that listen on a port of this machine."""
    if endpoint.host not in ("localhost", "127.0.0.1", "::1"):
        return []
    try:
        found = psutil.net_connections("tcp")
    except psutil.Error:
        return []
    listening = [one for one in found if one.status == psutil.CONN_LISTEN and one.pid]
    pids = {one.pid for one in listening if one.laddr and one.laddr.port == endpoint.port}
    return [psutil.Process(pid) for pid in pids if pid is not None]


def _postmaster() -> psutil.Process | None:
    """The server's first process, if it runs on this machine."""
    with connection.cursor() as cursor:
        cursor.execute("select pg_backend_pid()")
        (pid,) = cursor.fetchone()
    try:
        backend = psutil.Process(pid)
        parent = backend.parent()
        return parent if parent is not None and "postgres" in backend.name() else None
    except psutil.Error:
        return None
