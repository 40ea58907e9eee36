"""Django's connection from an event loop: a thread for what takes its time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from django.db import Error as DatabaseError
from django.db import close_old_connections, connection

R = TypeVar("R")


class DatabaseThread:
    """Runs functions that use Django's connection, one after the other."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def run(self, function: Callable[..., R], *args: object) -> R:
        """Call it there. Raises OSError when the database is away, and what the function raises."""
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
        return function(*args)
    except DatabaseError as error:
        connection.close()
        raise ConnectionError(str(error).strip()) from error
