"""``manage.py doctor``: what is to be changed in the server, the schema and the settings."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from queues.management.shell import REFUSED, SubcommandCommand
from queues.monitoring.doctor import examine


class Command(SubcommandCommand):
    """Ask the database and the settings whether the broker can keep its promises on them."""

    help = (
        "Asks the database's server, the schema and the settings, and says what to change and why. It changes "
        "nothing. Exit status: 0 well, 1 something to change, 2 usage."
    )
    #: What they find is among the answers.
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.set_defaults(do="examine")
        parser.add_argument("--json", action="store_true", help="print JSON")
        parser.add_argument(
            "--ignore", action="append", default=[], metavar="KIND", help="leave out findings of this kind"
        )

    def do_examine(self, options: dict[str, Any]) -> None:
        """Print the findings, and end with the status."""
        found = [problem for problem in examine() if problem.kind not in options["ignore"]]
        well = all(problem.notice for problem in found)
        if options["json"]:
            fields = ("kind", "text", "advice", "notice")
            findings = [{name: getattr(problem, name) for name in fields} for problem in found]
            self.say_json({"status": "well" if well else "change", "findings": findings})
        else:
            for problem in found:
                self.say(f"{'notice' if problem.notice else 'change'} [{problem.kind}]: {problem.text}")
                self.say(f"    {problem.advice}")
            if well:
                self.say("All is well.")
        if not well:
            raise SystemExit(REFUSED)
