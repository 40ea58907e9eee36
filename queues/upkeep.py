"""The periodic upkeep of the store: for Celery's tasks; engines do the same by themselves.

Each may run beside others. The broker needs Celery for `forget_old` alone, which can wait.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from django.db import DEFAULT_DB_ALIAS, OperationalError, transaction
from django.db.models.functions import Now
from psycopg.conninfo import make_conninfo
from psycopg.errors import LockNotAvailable

from queues.config.settings import settings
from queues.database.parameters import primary_parameters
from queues.database.sql_files import ALL
from queues.ends import ended
from queues.engine.cluster import reaper
from queues.engine.cluster.periodic import notice_days, told_idle
from queues.engine.database import connect
from queues.engine.health import Health
from queues.etl.workspace import is_log
from queues.models import EtlRun, Rollup
from queues.operations import bulk
from queues.store.queries import query

logger = logging.getLogger(__name__)

#: Lines of workers removed in one statement.
LINES = 10_000


def keep_archive(using: str = DEFAULT_DB_ALIAS) -> None:
    """Make the archive's partitions ahead, drop old ones, and unused subscriptions if the settings say so.

    Partitions are left for the next time while the archive has a long reader. Raises
    django.db.OperationalError when the database is away.
    """
    days = settings.BROKER_ARCHIVE_DAYS
    for name in ("make_partitions", "drop_partitions"):
        try:
            with transaction.atomic(using=using):
                query(name, using, days=days)
        except OperationalError as error:
            if not isinstance(error.__cause__, LockNotAvailable):
                raise
            logger.info("the archive is being read: its partitions are made and dropped later")
    _drop("drop_old_log_lines", days, LINES, using)
    if idle := settings.BROKER_IDLE_SUBSCRIPTION_DAYS:
        notice = notice_days(idle, settings.BROKER_IDLE_SUBSCRIPTION_NOTICE_DAYS)
        if (rows := query("warn_idle_subscriptions", using, days=idle, notice=notice)) and notice:
            logger.warning("%s", told_idle(idle, rows))
        ended("forgotten", _drop("drop_idle_subscriptions", idle, 1, using))


def _drop(name: str, days: int, limit: int, using: str) -> int:
    """Run one of the engine's statements until it finds less than it may remove at once. Returns the sum of its last
    column."""
    gone, total = limit, 0
    while gone == limit:
        [(gone, *_, last)] = [(*row, row[-1]) for row in query(name, using, days=days, limit=limit, **ALL)]
        total += last
    return total


def return_leases() -> int:
    """Give back what dead nodes had leased, where no other node lives to do it; returns how many nodes were dead.

    Raises psycopg.OperationalError when the database is away.
    """
    return asyncio.run(_return_leases())


async def _return_leases() -> int:
    parameters = {name: str(value) for name, value in primary_parameters().items()}

    connection = await connect(make_conninfo(**parameters), "upkeep")
    try:
        dead, health = await reaper.dead_nodes(connection), Health()
        return sum([await reaper.reap(connection, node, health) for node in dead])
    finally:
        await connection.close()


def forget_old() -> None:
    """Forget ETL runs that ended long ago, with their logs, bulk operations, and figures too old for any chart."""
    bulk.forget_old(settings.BROKER_BULK_OPERATION_DAYS)
    ended = Now() - timedelta(days=settings.BROKER_ETL_RUN_DAYS)
    for pk, log in list(EtlRun.objects.filter(ended_at__lt=ended).values_list("pk", "log")):
        remove_log(log)
        EtlRun.objects.filter(pk=pk).delete()
    Rollup.objects.filter(hour__lt=Now() - timedelta(days=settings.BROKER_ROLLUP_DAYS)).delete()


def remove_log(path: str) -> None:
    """Remove a run's log if it is on this machine, and where logs are."""
    log = Path(path)
    if path and is_log(log):
        with suppress(OSError):
            log.unlink()
