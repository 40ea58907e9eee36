"""``manage.py top``: the broker's queues, live."""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from queues.management.shell import database_in_words, number, seconds, table, to_json
from queues.operations.overview import Overview, QueueState, oldest_ready, take_overview

SORTS = {
    "rate": lambda queue: (-queue.in_rate - queue.out_rate, -queue.counts.held, queue.name),
    "ready": lambda queue: (-queue.counts.ready, queue.name),
    "dead": lambda queue: (-queue.counts.dead, queue.name),
    "name": lambda queue: queue.name,
}
HEADS = ("QUEUE", "READY", "LEASED", "DELAYED", "DEAD", "IN/S", "OUT/S", "OLDEST", "NODES", "")
#: Lines above the queues, and one left free for the cursor.
OTHER_LINES = 5
CLEAR = "\033[H\033[J"


class Command(BaseCommand):
    """Show what queues hold and what goes through them, refreshed until Ctrl-C."""

    help = "The broker's queues with their rates, refreshed until Ctrl-C; without a terminal one page after the other."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--interval", type=seconds, default=2.0, metavar="SECONDS", help="between two looks; default: %(default)s"
        )
        parser.add_argument("--limit", type=number(1), metavar="N", help="most queues; default: as many as fit, or 20")
        parser.add_argument("--sort", choices=SORTS, default="rate", help="default: %(default)s")
        parser.add_argument("--count", type=number(1), metavar="N", help="end after so many pages")
        parser.add_argument("--json", action="store_true", help="print one JSON object a look")

    def handle(self, *args: Any, **options: Any) -> None:
        with suppress(KeyboardInterrupt, BrokenPipeError), database_in_words():
            self._run(options)

    def _run(self, options: dict[str, Any]) -> None:
        interval = max(options["interval"], 0.1)
        before, shown = take_overview(), 0
        while options["count"] is None or shown < options["count"]:
            time.sleep(interval)
            before = take_overview(before)
            self._show(before, options)
            shown += 1

    def _show(self, overview: Overview, options: dict[str, Any]) -> None:
        terminal = self.stdout.isatty() and not options["json"]
        room = max(shutil.get_terminal_size().lines - OTHER_LINES, 3) if terminal else 20
        queues = sorted(overview.queues, key=SORTS[options["sort"]])[: options["limit"] or room]
        ages = oldest_ready(queue.id for queue in queues)
        if options["json"]:
            self.stdout.write(to_json(_values(overview, queues, ages), indent=None))
        else:
            self.stdout.write((CLEAR if terminal else "") + "\n".join(_page(overview, queues, ages)) + "\n")
        self.stdout.flush()


def _page(overview: Overview, queues: list[QueueState], ages: dict[int, float]) -> list[str]:
    held = overview.totals
    totals = ", ".join(f"{getattr(held, name):,} {name}" for name in ("ready", "leased", "delayed", "dead"))
    return [
        f"{overview.at:%H:%M:%S}  in {overview.in_rate:,.0f}/s, out {overview.out_rate:,.0f}/s  {totals}",
        f"{overview.nodes} nodes, {overview.workers} workers, {overview.connections} database connections, "
        f"{len(overview.queues):,} queues",
        "",
        table(HEADS, [_row(queue, ages.get(queue.id)) for queue in queues]),
    ]


def _row(queue: QueueState, age: float | None) -> tuple[Any, ...]:
    counts = queue.counts
    oldest = "" if age is None else f"{age:,.0f} s"
    return (
        queue.name, counts.ready, counts.leased, counts.delayed, counts.dead, round(queue.in_rate),
        round(queue.out_rate), oldest, queue.nodes, "paused" if queue.paused else "",
    )  # fmt: skip


def _values(overview: Overview, queues: list[QueueState], ages: dict[int, float]) -> dict[str, Any]:
    """The JSON object of a look."""
    return {
        "at": overview.at, "nodes": overview.nodes, "workers": overview.workers, "connections": overview.connections,
        "clients": overview.clients,
        "in_rate": round(overview.in_rate, 1), "out_rate": round(overview.out_rate, 1),
        "queues": [
            {
                "name": queue.name, "kind": queue.kind, "paused": queue.paused, "nodes": queue.nodes,
                "ready": queue.counts.ready, "leased": queue.counts.leased, "delayed": queue.counts.delayed,
                "dead": queue.counts.dead, "in_rate": round(queue.in_rate, 1), "out_rate": round(queue.out_rate, 1),
                "oldest": ages.get(queue.id),
            }
            for queue in queues
        ],
    }  # fmt: skip
