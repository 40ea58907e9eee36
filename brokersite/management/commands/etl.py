"""``manage.py etl``: that of `queues`, with the soak of the export."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError

from queues import extras
from queues.management.commands.etl import Command as EtlCommand
from queues.management.shell import REFUSED, ended_by_sigterm, number


class Command(EtlCommand):
    """Run, list, show, cancel and test exports."""

    def add_subcommands(self, do: Any) -> None:
        super().add_subcommands(do)
        soak = do.add_parser("soak", help="test that it is exact and harmless: runs under load, some of them killed")
        soak.add_argument("--messages", type=number(1), default=200_000, metavar="N", help="default: %(default)s")
        soak.add_argument("--runs", type=number(1), default=20, metavar="N", help="whole runs; default: %(default)s")
        soak.add_argument("--kills", type=number(0), default=2, metavar="N", help="of each stage; default: %(default)s")
        soak.add_argument(
            "--pairs", type=number(0), default=5, metavar="N",
            help="phases at full pace, beside a run and without; default: %(default)s",
        )  # fmt: skip
        soak.add_argument(
            "--seconds", type=number(1), default=3600, metavar="N",
            help="after which nothing new is begun; default: %(default)s",
        )  # fmt: skip
        soak.add_argument("--seed", type=number(0), default=0, metavar="N", help="order and moments of the kills")
        soak.add_argument("--json", action="store_true", help="print JSON")

    def do_soak(self, options: dict[str, Any]) -> None:
        from brokersite.rigs.etl_soak.errors import SoakBroken
        from brokersite.rigs.etl_soak.report import SoakPlan
        from brokersite.rigs.etl_soak.runner import Soak
        from brokersite.rigs.process import ProcessFailed

        if problem := extras.problem("etl"):
            raise CommandError(problem)
        plan = SoakPlan(**{name: options[name] for name in ("messages", "runs", "kills", "pairs", "seed", "seconds")})
        try:
            with ended_by_sigterm():
                report = Soak(plan, self.stderr.write).run()
        except ProcessFailed as error:
            raise SoakBroken(str(error)) from error
        if options["json"]:
            self.say_json(report.figures | {"passed": report.passed, "differences": report.comparison.differences})
        else:
            self.say("\n".join(report.lines()))
        if not report.passed:
            raise CommandError("The output differs from the archive.", returncode=REFUSED)
