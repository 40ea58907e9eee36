"""Shared by the commands of this application: tables, JSON, questions, progress, times."""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from django.core.management.base import BaseCommand, CommandError, OutputWrapper
from django.db import DataError, InterfaceError, OperationalError, ProgrammingError
from django.db.backends.signals import connection_created
from django.utils.dateparse import parse_datetime

from queues.checks import refuse_encoding
from queues.config.settings import settings
from queues.database.commit_watch import UNCONFIRMED, CommitWatch
from queues.engine.api import absence, lacked_right
from queues.errors import BrokerError
from queues.formats.limits import MAX_DELAY
from queues.formats.texts import is_storable

REFUSED, USAGE = 1, 2

Rows = Sequence[Sequence[Any]]
Values = Sequence[Mapping[str, Any]]

#: Characters of a bar of progress.
BAR = 30


class SubcommandCommand(BaseCommand):
    """A command whose first argument says what to do: `do_NAME` is called with the options."""

    #: Errors that are told in a line; any other shows its traceback.
    refusals: tuple[type[Exception], ...] = (BrokerError,)

    def handle(self, *args: Any, **options: Any) -> None:
        do: Callable[[dict[str, Any]], None] = getattr(self, f"do_{options['do']}")
        for name, value in options.items():
            for text in value if isinstance(value, list) else [value]:
                if isinstance(text, str) and not is_storable(text):
                    name = name.replace("_", "-")
                    raise CommandError(f"{name} has a NUL or bytes that are no UTF-8: {text[:40]!r}", returncode=USAGE)
        try:
            with database_in_words(), self._waits_in_words():
                do(options)
            self.stdout.flush()
        except BrokenPipeError:  # the reader of the output has closed it; the rest of the buffer is dropped
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except self.refusals as error:
            raise CommandError("\\n".join(str(error).splitlines()), returncode=REFUSED) from error  # one line
        except DataError as error:  # a value that the database has no room for, which no check has foreseen
            reason = str(error).partition("\n")[0]
            raise CommandError(f"The database refuses a value: {reason}", returncode=REFUSED) from error

    @contextmanager
    def _waits_in_words(self) -> Iterator[None]:
        """Say what a commit waits for, and what Ctrl-C means for it."""

        def tell() -> None:
            self.stderr.write(f"Waiting: the change {UNCONFIRMED}. Ctrl-C ends the wait, and the change stays.")

        with CommitWatch(settings.BROKER_STALL_TIMEOUT, tell) as watch:
            try:
                yield
            except KeyboardInterrupt:
                if not watch.waited:
                    raise
                raise CommandError(f"Interrupted: the change {UNCONFIRMED}.", returncode=REFUSED) from None

    def say(self, text: str) -> None:
        """One line on standard output."""
        self.stdout.write(text)

    def say_json(self, value: Any) -> None:
        """A value as JSON on standard output."""
        self.say(to_json(value))

    def say_list(self, as_json: bool, values: Values, nothing: str, names: Sequence[str] = ()) -> None:
        """Values as JSON or as a table, of some of the names; when there are none, that is said on standard error."""
        if as_json:
            self.say_json(values)
        elif values:
            self.say(listed(values, names))
        else:
            self.stderr.write(nothing)

    def say_values(self, as_json: bool, values: Mapping[str, Any]) -> None:
        """Values as JSON, or a line for each name."""
        width = max(map(len, values))
        lines = (f"{name.replace('_', ' '):<{width}}  {shown(value)}" for name, value in values.items())
        self.say(to_json(values) if as_json else "\n".join(lines))

    def ask(self, question: str, yes: bool) -> None:
        """Ask before what cannot be undone, unless `--yes`. Raises CommandError when the answer is no."""
        if yes:
            return
        if not on_terminal():
            raise CommandError(f"{question} Repeat it with --yes; there is no terminal to ask on.", returncode=USAGE)
        if input(f"{question} [y/N] ").strip().lower() not in ("y", "yes"):
            raise CommandError("Nothing was done.", returncode=REFUSED)


@contextmanager
def database_in_words() -> Iterator[None]:
    """Raises CommandError with one sentence when the database is away, has no tables yet, or does not give its role a
    right; WrongEncoding."""
    connection_created.connect(refuse_encoding)
    try:
        yield
    except (OperationalError, InterfaceError, psycopg.OperationalError) as error:
        raise CommandError(absence(error), returncode=REFUSED) from error
    except (ProgrammingError, psycopg.ProgrammingError) as error:
        if (refusal := lacked_right(error)) is not None:
            raise CommandError(refusal, returncode=REFUSED) from error
        if not isinstance(error.__cause__, psycopg.errors.UndefinedTable):
            raise
        raise CommandError("The database is not up to date; run manage.py migrate.", returncode=REFUSED) from error
    finally:
        connection_created.disconnect(refuse_encoding)


def secret_from(path: str) -> str:
    """A secret from a file, or from standard input for ``-``, without the end of its line. Raises CommandError."""
    try:
        text = sys.stdin.readline() if path == "-" else Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{path} cannot be read: {error}", returncode=USAGE) from error
    secret = text.removeprefix("\ufeff").strip("\r\n")  # editors write byte order marks
    if not secret:
        raise CommandError(f"There is no secret in {'standard input' if path == '-' else path}.", returncode=USAGE)
    return secret


def to_json(value: Any, indent: int | None = 2) -> str:
    """A value as JSON; durations are seconds, times ISO 8601."""
    return json.dumps(value, indent=indent, default=_plain)


def on_terminal() -> bool:
    """Whether there is a terminal to ask at."""
    return sys.stdin.isatty()


@contextmanager
def terminal_line(stream: OutputWrapper) -> Iterator[Callable[[str], None]]:
    """A function that shows a text in the last line of a terminal, which is empty at the end; elsewhere none."""
    terminal = stream.isatty()

    def show(text: str) -> None:
        if terminal:
            stream.write(f"\r\033[K{text}", lambda text: text, ending="")
            stream.flush()

    try:
        yield show
    finally:
        show("")


def bar(share: float) -> str:
    """A bar of progress, of which this share is done."""
    return f"[{('#' * int(BAR * share)).ljust(BAR, '.')}]"


@contextmanager
def progress(stream: OutputWrapper, verb: str) -> Iterator[Callable[[int], None]]:
    """A function that shows on a terminal how many messages were done; says so as well when it is interrupted."""
    done = 0

    def count(now: int) -> None:
        nonlocal done
        done = now
        show(f"{verb} {now:,}")

    try:
        with terminal_line(stream) as show:
            yield count
    except KeyboardInterrupt:
        raise CommandError(f"Interrupted: {done:,} messages were {verb}.", returncode=REFUSED) from None


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """SIGTERM interrupts like Ctrl-C, so that what a command has made is removed; so does SIGHUP, of a terminal that is
    closed. What is ignored stays so, and a thread of another program has no signals."""
    numbers = (signal.SIGTERM, signal.SIGHUP) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        if before[number] != signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def table(heads: Sequence[str], rows: Rows) -> str:
    """Rows in columns; numbers to the right."""
    cells = [[f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    numeric = [bool(rows) and all(isinstance(row[n], int) for row in rows) for n in range(len(heads))]

    def line(row: Sequence[str]) -> str:
        return "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(row, widths, numeric, strict=True)
        ).rstrip()

    return "\n".join(map(line, [list(heads), *cells]))


def listed(values: Values, names: Sequence[str] = ()) -> str:
    """Values by name as a table, of some of the names, or of those that the first one has. Ids are no numbers."""

    def cell(name: str, value: Any) -> Any:
        is_number = isinstance(value, int) and not isinstance(value, bool) and name != "id"
        return value if is_number else str(value) if name == "id" else shown(value)

    names = names or list(values[0])
    heads = [name.removesuffix("_at").replace("_", " ").upper() for name in names]
    return table(heads, [[cell(name, one.get(name)) for name in names] for one in values])


def shown(value: Any) -> str:
    """A value in words of the shell."""
    if value is None or value in ("", [], {}):
        return "-"
    if isinstance(value, list):
        return ", ".join(map(shown, value))
    if isinstance(value, dict):
        return ", ".join(f"{name}: {shown(one)}" for name, one in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime.datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    return f"{value:,}".removesuffix(".0") if isinstance(value, int | float) else str(value)


def seconds(text: str) -> float:
    """An argument: seconds, fractions allowed."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= MAX_DELAY:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: seconds, such as 30 or 0.5")
    return value


def moment(text: str) -> datetime.datetime:
    """An argument: a day, or a time in ISO 8601; UTC unless it says otherwise."""
    try:
        at = parse_datetime(text)
    except ValueError:
        at = None
    if at is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; write it like 2026-11-22 or 2026-11-22T08:30:00+01:00")
    return at if at.tzinfo else at.replace(tzinfo=datetime.UTC)


def number(least: int) -> Callable[[str], int]:
    """An argument: a whole number that is not less than this."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value < 1 << 31:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of {least} or more")
        return value

    return parse


def _plain(value: object) -> Any:
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    return str(value)
