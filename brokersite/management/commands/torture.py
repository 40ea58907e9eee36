"""``manage.py torture``: kill the listener and the database under load, and judge what clients saw."""

from __future__ import annotations

import random
import subprocess
import tempfile
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import psycopg
from django.core.management.base import BaseCommand, CommandError

from brokersite.embedded import EmbeddedPostgresError
from brokersite.rigs.process import ProcessFailed
from brokersite.rigs.torture.database import TortureDatabase
from brokersite.rigs.torture.history import InjectedFaultKind
from brokersite.rigs.torture.runner import Run, TorturePlan, describe
from queues.config import extras
from queues.management.shell import ended_by_sigterm

COUNTS = {
    "kills": (InjectedFaultKind.KILL, 200, "kill -9 of the listener"),
    "database_kills": (InjectedFaultKind.DATABASE_KILL, 20, "kill -9 of PostgreSQL"),
    "cuts": (InjectedFaultKind.CUT, 10, "cuts of the engine's database connections"),
    "freezes": (InjectedFaultKind.FREEZE, 10, "freezes of PostgreSQL (SIGSTOP, later SIGCONT)"),
    "stops": (InjectedFaultKind.STOP, 10, "orderly stops of the listener (SIGTERM)"),
}


class Command(BaseCommand):
    """Torture a broker of its own and tell whether it kept its promises."""

    help = (
        "Run a broker of its own, with a PostgreSQL and a data directory of its own, under load from BlipMQ and "
        "SSPQ clients, while its processes are killed, cut off, frozen and stopped at random times. At the end "
        "nothing that was confirmed may be lost, repetitions must have a cause, order must hold. Exit code 0 if "
        "all promises were kept, 1 if not. The broker of this checkout is not touched."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        for name, (_, default, what) in COUNTS.items():
            parser.add_argument(
                f"--{name.replace('_', '-')}", type=int, default=default, metavar="N",
                help=f"{what} (default: %(default)s)",
            )  # fmt: skip
        parser.add_argument(
            "--seconds", type=float, default=900.0, metavar="S",
            help="longest time for load and faults; with no faults, the duration of the load (default: %(default)s)",
        )  # fmt: skip
        parser.add_argument("--seed", type=int, metavar="S", help="repeat the faults of an earlier run")
        parser.add_argument(
            "--listeners", type=int, default=1, metavar="N",
            help="listener processes on one database (default: %(default)s)",
        )  # fmt: skip
        parser.add_argument(
            "--keep", action="store_true", help="keep the data directory, with the logs, also when all is well"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if any(options[name] < 0 for name in COUNTS) or options["seconds"] <= 0 or options["listeners"] < 1:
            raise CommandError("Counts must be 0 or more, --seconds more than 0, --listeners 1 or more.")
        if problem := extras.problem("embedded"):
            raise CommandError(problem)
        seed = options["seed"] if options["seed"] is not None else random.SystemRandom().randrange(10**6)
        plan = TorturePlan(
            seed=seed,
            faults={kind: options[name] for name, (kind, _, _) in COUNTS.items()},
            seconds=options["seconds"],
            listeners=options["listeners"],
        )
        try:
            with ended_by_sigterm():
                passed = self._torture(plan, keep=options["keep"])
        except KeyboardInterrupt:
            raise CommandError("interrupted") from None
        if not passed:
            raise SystemExit(1)

    def _torture(self, plan: TorturePlan, keep: bool) -> bool:
        """Whether all promises were kept; if not, or if the run breaks off, its data stays to be looked at."""
        data_dir = Path(tempfile.mkdtemp(prefix="fivewire-torture-"))
        database = TortureDatabase(data_dir)
        self._say(f"seed {plan.seed}, data in {data_dir}")
        try:
            database.start()
            report = Run(database, plan, self._say).run()
            for line in describe(report):
                self._say(line)
            keep = keep or not report.passed
            return report.passed
        except (EmbeddedPostgresError, ProcessFailed, OSError, subprocess.CalledProcessError, psycopg.Error) as error:
            keep = True
            raise CommandError(f"The run could not be finished: {error}") from error
        finally:
            if keep:
                database.stop()
                self._say(f"kept: {data_dir} (remove it with python -m brokersite.embedded remove {data_dir})")
            else:
                database.remove()

    def _say(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()
