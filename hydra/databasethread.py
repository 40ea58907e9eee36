"""Django's connection from an event loop: a thread for what takes its time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from django.db import DatabaseError, InterfaceError, InternalError, OperationalError, close_old_connections, connection

#: Seconds that a statement may take.
LONGEST: Final = 30.0

R = TypeVar("R")


class DatabaseThread:
    """Runs functions that use Django's connection, one after the other."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def run(self, function: Callable[..., R], *args: object) -> R:
        """Call it there.

        Raises OSError when the database is away or takes longer than `LONGEST`, and what the function raises: a
        DatabaseError is about what was to be written.
        """
        return await asyncio.get_running_loop().run_in_executor(self._executor, _call, function, args)

    async def stop(self) -> None:
        """Close the connection."""
        await asyncio.get_running_loop().run_in_executor(self._executor, _close)
        self._executor.shutdown()


def _close() -> None:
    connection.close()  # this thread's own: the name stands for another one in each


def _call(function: Callable[..., R], args: tuple[object, ...]) -> R:
    close_old_connections()
    try:
        if connection.connection is None:
            _bound()
        return function(*args)
    except (OperationalError, InterfaceError, InternalError) as error:
        connection.close()
        raise ConnectionError(str(error).strip()) from error
    except DatabaseError:
        connection.close()
        raise


def _bound() -> None:
    """Connect, and let no statement take longer than `LONGEST`: the gate is looked at again when it has ended."""
    with connection.cursor() as cursor:
        cursor.execute("select set_config('statement_timeout', %s, false)", [f"{LONGEST:g}s"])
