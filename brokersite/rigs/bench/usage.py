"""CPU time of the processes that are measured, as far as they run on this machine and may be looked at."""

from __future__ import annotations

import psutil

from brokersite.rigs.bench.stream import Endpoint
from queues.processes.processors import seconds_of


class CpuMeter:
    """Processor time of a broker's processes and of PostgreSQL's; load processes are given it."""

    def __init__(self, endpoint: Endpoint, with_postgres: bool) -> None:
        self._broker = _listening(endpoint)
        self._postgres = _postmaster() if with_postgres else []

    def read(self) -> dict[str, float]:
        """Seconds used so far: `broker`, `postgresql`, as far as known."""
        used = {"broker": seconds_of(_running(self._broker))} if self._broker else {}
        for postmaster in _running(self._postgres):
            used["postgresql"] = seconds_of([postmaster, *postmaster.children()])
        return used


def _running(pids: list[int]) -> list[psutil.Process]:
    return [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]


def _listening(endpoint: Endpoint) -> list[int]:
    """The processes that listen on a port of this machine."""
    if endpoint.host not in ("localhost", "127.0.0.1", "::1"):
        return []
    try:
        found = psutil.net_connections("tcp")
    except psutil.Error:
        return []
    listening = [one for one in found if one.status == psutil.CONN_LISTEN]
    return list({one.pid for one in listening if one.pid and one.laddr and one.laddr.port == endpoint.port})


def _postmaster() -> list[int]:
    """The server's first process, if it runs on this machine."""
    from django.db import connection  # here: load processes do without

    with connection.cursor() as cursor:
        cursor.execute("select pg_backend_pid()")
        (pid,) = cursor.fetchone()
    try:
        backend = psutil.Process(pid)
        return [backend.ppid()] if "postgres" in backend.name() else []
    except psutil.Error:
        return []
