"""The time, queries and snapshots of every page of the admin, in a store with millions of messages::

    python -m tests.rigs.control_room.bench --messages 2000000 --queues 2000 --connections 500

The store is a database of its own on the project's server, which is dropped at the end. Exit status 1 when a page
exceeds what `visits` allows. The slowest come first: "ms" is by the clock, which a busy machine makes slow, "here" the
processor time of Python.
"""

from __future__ import annotations

import argparse
import sys
from typing import Final

from tests.rigs.control_room.prepared import filled_database, parser_of, tell

NAME: Final = "fivewire_control_room_bench"


def main() -> None:
    """Fill, visit, and print a table."""
    parser = parser_of("Measure every page of the admin in a large store.", messages=2_000_000)
    parser.add_argument("--visits", type=int, default=5, help="of each page, by the clock; the median counts")
    parser.add_argument("--only", default="", metavar="WORDS", help="pages whose name has these words")
    given = parser.parse_args()
    with filled_database(NAME, given):
        tell("visiting")
        sys.exit(_visit(given))


def _visit(given: argparse.Namespace) -> int:
    from django.contrib.auth.models import User

    from tests.rigs.control_room.pages import admin_pages
    from tests.rigs.control_room.visits import Visitor

    user = User.objects.create_superuser("bench")
    visitor, pages = Visitor(user), [page for page in admin_pages(user) if given.only in page.name]
    for page in pages:  # templates are compiled at the first visit of any, and ages of caches begin
        visitor.open(page)
    visited = sorted((visitor.visit(page, given.visits) for page in pages), key=lambda one: -one.seconds)
    missed = [one for one in visited if one.faults]
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
