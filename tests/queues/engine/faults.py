"""Faults put into the engine's statements: one that fails the next time, and messages that no statement may change."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Generator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from psycopg import AsyncConnection, generators
from psycopg.rows import TupleRow

from queues.engine import statements
from queues.engine.driver import EngineConnection
from tests.queues.engine.conftest import Store
from tests.queues.engine.named import STATEMENTS
from tests.tables import altering
from tests.waiting import PATIENCE

#: An error that says nothing of the connection, and that no repetition helps against.
UNFORESEEN = "22012"


class Faults:
    """Makes named statements fail at the server, with an SQLSTATE of choice. `hits` counts by name,
    and `runs` how often one was given to the server as it is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hits: Counter[str] = Counter()
        self.runs: Counter[str] = Counter()
        self._next: dict[str, tuple[str, int]] = {}
        self._hit = asyncio.Event()
        names = {statements.statement(name): name for name in STATEMENTS}
        execute = AsyncConnection.execute

        async def execute_or_fail(
            connection: AsyncConnection[Any], query: Any, parameters: Any = None, **options: Any
        ) -> Any:
            name = names.get(query) if isinstance(query, bytes) else None
            if name is None or not self._is_due(name):
                self.runs[str(name)] += 1
                return await execute(connection, query, parameters, **options)
            return await execute(connection, self._failure(name))

        ask = EngineConnection.ask

        def ask_or_fail(
            connection: EngineConnection, name: str, parameters: Mapping[str, Any], binary: bool = False
        ) -> Generator[Any, Any, list[TupleRow]]:
            if self._is_due(name):
                connection.pgconn.send_query(self._failure(name))
                connection._result_of((yield from generators.execute(connection.pgconn)))
            self.runs[name] += 1
            return (yield from ask(connection, name, parameters, binary))

        monkeypatch.setattr(AsyncConnection, "execute", execute_or_fail)
        monkeypatch.setattr(EngineConnection, "ask", ask_or_fail)

    def _failure(self, name: str) -> bytes:
        """The text that is given to the server in place of a statement."""
        state, _ = self._next[name]
        return f"do $$ begin raise 'injected' using errcode = '{state}'; end $$".encode()

    def _is_due(self, name: str) -> bool:
        state, times = self._next.get(name, ("", 0))
        if not times:
            return False
        self._next[name] = state, times - 1
        self.hits[name] += 1
        self._hit.set()
        return True

    def put(self, name: str, state: str = UNFORESEEN, times: int = 1) -> None:
        """Let a statement fail so many times."""
        self._next[name] = state, times

    def clear(self) -> None:
        """Let nothing fail any more."""
        self._next.clear()

    async def until_hit(self, name: str, times: int = 1) -> None:
        """Wait until a statement has failed so often."""
        async with asyncio.timeout(PATIENCE):
            while self.hits[name] < times:
                self._hit.clear()
                await self._hit.wait()


@asynccontextmanager
async def unwritable(
    store: Store, operation: str, payload: bytes = b"poison", when: str = "true"
) -> AsyncIterator[None]:
    """Within it no statement that would insert, update or delete a message with this payload works. `when` restricts
    that to some changes, in terms of `old` and `new`. Inserts and claims fail for a segment with such a message, too.

    The tables' locks are waited for while the loop goes on: the engine under test may be within a transaction.
    """
    row = "new" if operation == "insert" else "old"
    of_segments = {("insert", "true"): "true", ("update", "new.state = 1"): "new.node_id is not null"}
    conditions = {
        "queues_message": f"{row}.payload = '\\x{payload.hex()}' and {when}",
        "queues_segment": f"'\\x{payload.hex()}' = any({row}.bodies) and {of_segments.get((operation, when), 'false')}",
    }
    async with await AsyncConnection.connect(store.conninfo, autocommit=True) as connection:
        await connection.execute(
            b"create or replace function fail_on_poison() returns trigger language plpgsql as"
            b" $$ begin raise 'this row fails' using errcode = '22012'; end $$"
        )
        try:
            for table, condition in conditions.items():
                trigger = f"create trigger poison before {operation} on {table} for each row when ({condition})"
                await connection.execute(altering(table, f"{trigger} execute function fail_on_poison()").encode())
            yield
        finally:
            for table in conditions:
                await connection.execute(altering(table, f"drop trigger if exists poison on {table}").encode())
