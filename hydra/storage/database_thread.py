"""Django's connection for an event loop: a thread that runs blocking functions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from django.db import (
    DatabaseError,
    InterfaceError,
    InternalError,
    OperationalError,
    close_old_connections,
    connection,
    connections,
)

from hydra.storage.database import bounds

#: Seconds for a statement on which nothing waits.
TIMEOUT: Final = 30.0

R = TypeVar("R")


class DatabaseThread:
    """Runs functions that use Django's connection, one after the other."""

    def __init__(self, name: str, timeout: float = TIMEOUT) -> None:
        """`timeout`: the limit in seconds of connecting, a statement, and the server's silence."""
        self._timeout = timeout
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def run(self, function: Callable[..., R], *args: object) -> R:
        """Call the function in the thread.

        Raises OSError when the database is away or takes too long, and the function's own errors: a DatabaseError
        is about its data.
        """
        return await asyncio.get_running_loop().run_in_executor(self._executor, _call, self._timeout, function, args)

    async def stop(self) -> None:
        """Close the connection."""
        await asyncio.get_running_loop().run_in_executor(self._executor, _close)
        self._executor.shutdown()


def _close() -> None:
    connection.close()  # this thread's own connection


def _call(timeout: float, function: Callable[..., R], args: tuple[object, ...]) -> R:
    close_old_connections()
    try:
        if connection.connection is None:
            _connect(timeout)
        return function(*args)
    except (OperationalError, InterfaceError, InternalError) as error:
        connection.close()
        raise ConnectionError(str(error).strip()) from error
    except DatabaseError:
        connection.close()
        raise


def _connect(timeout: float) -> None:
    """Connect with these bounds, which stay in this thread's settings."""
    given = connections.settings[connection.alias]
    parameters, session = bounds(timeout, given["OPTIONS"])
    added = (f"-c {name}={value}" for name, value in session.items())
    options = " ".join([given["OPTIONS"].get("options", ""), *added])
    connection.settings_dict = given | {"OPTIONS": given["OPTIONS"] | parameters | {"options": options.strip()}}
    connection.ensure_connection()
