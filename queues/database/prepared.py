"""Named statements prepared at the server: numbers for their parameters, and connections that run them."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping
from itertools import count
from typing import Any, Final, NamedTuple

from psycopg import BaseConnection
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import InvalidSqlStatementName, error_from_result
from psycopg.generators import execute
from psycopg.pq import ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg.rows import TupleRow

#: The results of statements that succeeded.
DONE: Final = frozenset({ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK})
#: A parameter as psycopg has it, `%(name)s`, or a percent sign.
_PARAMETER: Final = re.compile(rb"%(?:%|\((\w+)\)([sbt]))")


class NumberedStatement(NamedTuple):
    """A statement as the server takes it: `$1` stands for the first of `names`, which is sent in the first format."""

    text: bytes
    names: tuple[str, ...]
    formats: tuple[PyFormat, ...]


def number(name: str, text: bytes) -> NumberedStatement:
    """A statement, here called `name`, with numbers for its parameters."""
    formats: dict[str, PyFormat] = {}

    def place(found: re.Match[bytes]) -> bytes:
        if found.group() == b"%%":
            return b"%"
        parameter, format = found[1].decode(), PyFormat(found[2].decode())
        if formats.setdefault(parameter, format) is not format:
            raise ValueError(f"{name}.sql sends {parameter} in two formats")
        return b"$%d" % (1 + list(formats).index(parameter))

    text = _PARAMETER.sub(place, text)
    return NumberedStatement(text, tuple(formats), tuple(formats.values()))


class PreparedStatements(BaseConnection[TupleRow]):
    """A connection that runs named statements, prepared under names of its own, with all that psycopg's cursors cost
    left out: their parameters and rows are adapted by one `Transformer`."""

    #: Gives a named statement with numbers for its parameters. A subclass has it.
    numbered: Callable[[str], NumberedStatement]

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._transformer = Transformer(self)
        #: The names that statements are prepared under, by ours and the types of the parameters.
        self._prepared_as: dict[tuple[str, tuple[int, ...] | None], bytes] = {}
        self._numbers = count()

    def forget_prepared(self) -> None:
        """psycopg has deallocated all prepared statements, as when it rolls back."""
        self._prepared_as.clear()

    def ask(
        self, name: str, parameters: Mapping[str, Any], binary: bool = False
    ) -> Generator[Any, Any, list[TupleRow]]:
        """Run a statement; returns its rows. For `wait`."""
        server, transformer, (text, names, formats) = self.pgconn, self._transformer, self.numbered(name)
        values = transformer.dump_sequence([parameters[name] for name in names], formats)
        key, sent = (name, transformer.types), transformer.formats
        while True:
            prepared = self._prepared_as.get(key) or (yield from self.prepare(*key, text))
            server.send_query_prepared(prepared, values, sent, Format.BINARY if binary else Format.TEXT)
            try:
                result = self._result_of((yield from execute(server)))
            except InvalidSqlStatementName:  # psycopg has rolled back
                self.forget_prepared()
                if server.transaction_status != TransactionStatus.IDLE:
                    raise
            else:
                break
        transformer.set_pgresult(result)
        rows = transformer.load_rows(0, result.ntuples, tuple)
        transformer.set_pgresult(None)
        return rows

    def prepare(self, name: str, types: tuple[int, ...] | None, text: bytes) -> Generator[Any, Any, bytes]:
        """Prepare a statement unless it is; returns the name that it is prepared under. For `wait`."""
        if (prepared := self._prepared_as.get((name, types))) is None:
            prepared = b"fivewire %d" % next(self._numbers)
            self.pgconn.send_prepare(prepared, text, types)
            self._result_of((yield from execute(self.pgconn)))
            self._prepared_as[name, types] = prepared
        return prepared

    def _result_of(self, results: list[PGresult]) -> PGresult:
        """The statement's result. Raises the error that it or its commit, which checks deferred constraints, ended
        with."""
        result, last = results[0], results[-1]
        if last.status not in DONE:
            raise error_from_result(last, self.info.encoding)
        return result
