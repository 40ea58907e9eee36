"""``manage.py etl``: the way out for data, from the shell."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.template.defaultfilters import filesizeformat

from queues.errors import BrokerError
from queues.etl import runs
from queues.etl.job.config import BODIES
from queues.etl.options import RunOptions
from queues.management.shell import REFUSED, SubcommandCommand, bar, ended_by_sigterm, moment, number, terminal_line
from queues.models import EtlRun, EtlState


class Command(SubcommandCommand):
    """Run, list, show and cancel exports."""

    help = (
        "Finished messages and audit rows as Parquet at ETL_OUTPUT, and rollups for the admin's charts. "
        "Exit status: 0 done and all chains right, 1 refused, failed, cancelled or a chain is broken, 2 usage."
    )

    refusals = (BrokerError, OSError)

    def add_arguments(self, parser: CommandParser) -> None:
        self.add_subcommands(parser.add_subparsers(dest="do", required=True, metavar="COMMAND"))

    def add_subcommands(self, do: Any) -> None:
        """Declare the subcommands; a subclass adds its own."""
        go = do.add_parser("run", help="export the messages finished since the last run")
        go.add_argument(
            "--since", type=moment, metavar="TIME",
            help="also messages finished at this time or later that are missing in the output, for example 2026-11-22; "
            "for the first run: nothing older",
        )  # fmt: skip
        go.add_argument("--bodies", choices=BODIES, help="payloads that the archive keeps; default: BROKER_ETL_BODIES")
        go.add_argument("--body-schema", metavar="DDL", help="fields of JSON payloads, as columns")
        go.add_argument("--no-verify", action="store_true", help="leave the audit chains unverified")
        go.add_argument("--detach", action="store_true", help="do not wait for the end")
        listing = do.add_parser("list", help="the last runs")
        listing.add_argument("--limit", type=number(1), default=20, metavar="N", help="most; default: %(default)s")
        show = do.add_parser("show", help="all about a run")
        stop = do.add_parser("cancel", help="end a run; the next one reads again all that it has not completed")
        for one in (show, stop):
            one.add_argument("run", type=number(1), metavar="RUN")
        for one in (go, listing, show, stop):
            one.add_argument("--json", action="store_true", help="print JSON")

    def do_run(self, options: dict[str, Any]) -> None:
        given: dict[str, Any] = {"since": options["since"], "verify": "none" if options["no_verify"] else None}
        given |= {"bodies": options["bodies"], "body_schema": options["body_schema"]}
        if options["bodies"] not in (None, "json") and options["body_schema"] is None:
            given["body_schema"] = ""  # the setting's is for json
        chosen = RunOptions(**{name: value for name, value in given.items() if value is not None})
        if options["detach"]:
            return self.say_values(options["json"], _values(runs.start(chosen)))
        made = runs.create(chosen)
        try:
            with ended_by_sigterm(), self._progress(options["json"]) as show:
                ended = runs.run(made, show)
        except KeyboardInterrupt:
            raise CommandError(f"Run {made.pk} was cancelled.", returncode=REFUSED) from None
        if options["json"]:
            self.say_json(_values(ended))
        if ended.state != EtlState.SUCCEEDED:
            detail = ended.error or "it was cancelled"
            raise CommandError(f"Run {ended.pk} has {ended.state}: {detail}", returncode=REFUSED)
        if not options["json"]:
            self.say("\n".join(summary(ended)))
        for warning in ended.warnings:
            self.stderr.write(warning)
        if any(not verdict["ok"] for verdict in ended.figures.get("audit", {}).values()):
            raise CommandError("The rows are exported; an audit chain is not right.", returncode=REFUSED)
        return None

    @contextmanager
    def _progress(self, as_json: bool) -> Iterator[Callable[[str, int, int], None]]:
        """A function that shows progress: in the last line of a terminal, else line by line, unless JSON is printed."""
        if self.stderr.isatty():
            with terminal_line(self.stderr) as show:
                yield lambda *progress: show(_progress_text(*progress))
        elif as_json:
            yield lambda *progress: None
        else:
            yield ProgressLines(self.say)

    def do_list(self, options: dict[str, Any]) -> None:
        runs.recover()
        values = [_values(one) for one in EtlRun.objects.all()[: options["limit"]]]
        names = ("run", "state", "trigger", "queued_at", "seconds", "rows_out", "late_rows", "bytes", "output")
        self.say_list(options["json"], values, "There are no runs yet.", names)

    def do_show(self, options: dict[str, Any]) -> None:
        runs.recover()
        self.say_values(options["json"], _values(runs.get(options["run"])))

    def do_cancel(self, options: dict[str, Any]) -> None:
        self.say_values(options["json"], _values(runs.cancel(options["run"])))


class ProgressLines:
    """Says each stage, and while one lasts how far it is, every `EVERY` seconds."""

    EVERY = 10.0

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._began = self._said = monotonic()
        self._stage = ""

    def __call__(self, stage: str, done: int, total: int) -> None:
        now = monotonic()
        if stage == self._stage and now - self._said < self.EVERY:
            return
        self._stage, self._said = stage, now
        count = f", {done:,} of about {total:,} rows" if total else ""
        self._say(f"{now - self._began:4.0f} s  {stage}{count}")


def summary(run: EtlRun) -> Iterator[str]:
    """What a run that has succeeded has done, in sentences."""
    tables = run.figures.get("tables", {})
    rows = {name: tables.get(name, {}).get("rows_out", 0) for name in ("messages", "audit", "live")}
    files = sum(table.get("files", 0) for table in tables.values())
    size = filesizeformat(run.bytes).replace("\xa0", " ")
    yield f"Run {run.pk} has written to {run.output} in {_seconds(run) or 0:,.0f} s: {files:,} files, {size}."
    yield (
        f"Messages finished since the last run: {rows['messages']:,}; rows of audit chains: {rows['audit']:,}; "
        f"messages not finished yet: {rows['live']:,}."
    )
    if run.late_rows:
        yield f"Messages of days that were over before the last run: {run.late_rows:,}."
    if audit := run.figures.get("audit"):
        right = sum(verdict["ok"] for verdict in audit.values())
        yield f"Audit chains verified: {len(audit):,}, of these right: {right:,}."


def _progress_text(stage: str, done: int, total: int) -> str:
    count = f"{done:,} of about {total:,} rows" if total else ""
    return f"{stage.ljust(15)} {bar(min(1.0, done / total) if total else 0.0)} {count}"


def _seconds(one: EtlRun) -> float | None:
    if one.started_at is None or one.ended_at is None:
        return None
    return round(float(one.ended_at.timestamp() - one.started_at.timestamp()), 1)


def _values(one: EtlRun) -> dict[str, Any]:
    return {
        "run": one.pk, "state": one.state, "trigger": one.trigger, "output": one.output, "number": one.number,
        "options": one.options, "queued_at": one.queued_at, "started_at": one.started_at, "ended_at": one.ended_at,
        "seconds": _seconds(one), "stage": one.stage, "done": one.done, "total": one.total, "rows_in": one.rows_in,
        "rows_out": one.rows_out, "late_rows": one.late_rows, "bytes": one.bytes, "window_from": one.window_from,
        "window_to": one.window_to, "warnings": one.warnings, "error": one.error, "log": one.log,
        "figures": one.figures,
    }  # fmt: skip
