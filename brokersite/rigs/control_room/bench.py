"""The time, queries and snapshots of every page of the admin, in a store with millions of messages::

    python -m brokersite.rigs.control_room.bench --messages 2000000 --queues 2000 --connections 500

The store is a database of its own on the project's server, which is dropped at the end. Exit status 1 when a page
exceeds what `visits` allows. The slowest come first: "ms" is by the clock, which a busy machine makes slow, "here" the
processor time of Python.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import django
import psycopg

NAME: Final = "fivewire_control_room_bench"


@contextmanager
def as_default(alias: str) -> Iterator[None]:
    """Have this thread's default connection lead to another database."""
    from django.db import DEFAULT_DB_ALIAS, connections

    before = connections.databases[DEFAULT_DB_ALIAS]
    connections[DEFAULT_DB_ALIAS].close()
    connections.databases[DEFAULT_DB_ALIAS] = connections.databases[alias]
    del connections[DEFAULT_DB_ALIAS]
    try:
        yield
    finally:
        connections[DEFAULT_DB_ALIAS].close()
        connections.databases[DEFAULT_DB_ALIAS] = before
        del connections[DEFAULT_DB_ALIAS]


def main() -> None:
    """Fill, visit, and print a table."""
    parser = argparse.ArgumentParser(description="Measure every page of the admin in a large store.")
    add_size(parser, messages=2_000_000)
    parser.add_argument("--visits", type=int, default=5, help="of each page, by the clock; the median counts")
    parser.add_argument("--only", default="", metavar="WORDS", help="pages whose name has these words")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "brokersite.settings")
    django.setup()
    from brokersite.rigs.etl.scratch import scratch_database

    def tell(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    with scratch_database(NAME) as alias:
        make_store(alias, given, tell)
        with as_default(alias):
            tell("visiting")
            sys.exit(_visit(given))


def add_size(parser: argparse.ArgumentParser, messages: int) -> None:
    """The options that say how large the store is."""
    parser.add_argument("--messages", type=int, default=messages)
    parser.add_argument("--queues", type=int, default=2_000)
    parser.add_argument("--connections", type=int, default=500, help="and as many workers, peers, subscribers")


def make_store(alias: str, given: argparse.Namespace, tell: Callable[[str], None]) -> None:
    """Fill the database of an alias, as large as was asked for."""
    from brokersite.rigs.control_room.store import Size, fill
    from queues.database import connection_parameters

    with psycopg.connect(**connection_parameters(alias), autocommit=True) as connection:
        connection.execute("set synchronous_commit = off")
        fill(connection.cursor(), Size(given.messages, given.queues, given.connections), tell)
        tell("vacuum")
        connection.execute("vacuum analyze")


def _visit(given: argparse.Namespace) -> int:
    from django.contrib.auth.models import User

    from brokersite.rigs.control_room.pages import admin_pages
    from brokersite.rigs.control_room.visits import Visitor

    user = User.objects.create_superuser("bench")
    visitor, pages = Visitor(user), [page for page in admin_pages(user) if given.only in page.name]
    for page in pages:  # templates are compiled at the first visit of any, and ages of caches begin
        visitor.open(page)
    visited = sorted((visitor.visit(page, given.visits) for page in pages), key=lambda one: -one.seconds)
    missed = [one for one in visited if one.faults]
    if given.json:
        rows = [
            {
                "page": one.page.name, "ms": round(1000 * one.seconds, 1),
                "processor_ms": round(1000 * one.processor, 1), "database_ms": round(1000 * one.database, 1),
                "queries": one.queries, "snapshot_ms": round(1000 * one.snapshot, 1), "faults": one.faults,
            }
            for one in visited
        ]  # fmt: skip
        print(json.dumps(rows, indent=2))
    else:
        print(f"{'ms':>7} {'here':>7} {'in SQL':>7} {'snapshot':>8} {'queries':>7}  page")
        for one in visited:
            figures = zip((one.seconds, one.processor, one.database, one.snapshot), (7, 7, 7, 8), strict=True)
            cells = [f"{1000 * seconds:{width},.0f}" for seconds, width in figures]
            faults = f" — too much: {', '.join(one.faults)}" if one.faults else ""
            print(*cells, f"{one.queries:7} ", f"{one.page.name}{faults}")
        print(f"{len(visited)} pages, {len(missed)} of them exceed a limit")
    return 1 if missed else 0


if __name__ == "__main__":
    main()
