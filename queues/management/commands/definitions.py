"""``manage.py definitions``: queues, routes, periodic jobs and the rights of API keys as JSON, out and in."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from queues.management.shell import USAGE, SubcommandCommand
from queues.operations.audit_log import shell_operator
from queues.operations.definitions import (
    InvalidDefinitions,
    decode_definitions,
    export_definitions,
    import_definitions,
    parse_definitions,
)


class Command(SubcommandCommand):
    """Export and import definitions."""

    help = (
        "Queues with their policies, routes, periodic jobs and the rights of API keys, as JSON without secrets. "
        "An import adds and changes, and removes nothing. Exit status: 0 done, 1 refused, 2 usage."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        do = parser.add_subparsers(dest="do", required=True, metavar="export|import")
        out = do.add_parser("export", help="write the definitions")
        out.add_argument("file", nargs="?", default="-", metavar="FILE", help="default: standard output")
        bring = do.add_parser("import", help="bring definitions in, all of them or none")
        bring.add_argument("file", metavar="FILE", help="a file written by export; -: standard input")
        bring.add_argument("--dry-run", action="store_true", help="print the changes, and make none")
        bring.add_argument("--json", action="store_true", help="print the changes as JSON")

    def do_export(self, options: dict[str, Any]) -> None:
        text = json.dumps(export_definitions(), indent=2, ensure_ascii=False)
        if options["file"] == "-":
            return self.say(text)
        try:
            Path(options["file"]).write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise CommandError(f"{options['file']} cannot be written: {error}", returncode=USAGE) from error
        return None

    def do_import(self, options: dict[str, Any]) -> None:
        changes = import_definitions(_read(options["file"]), shell_operator(), dry_run=options["dry_run"])
        if options["json"]:
            return self.say_json([{"action": c.action, "id": c.id, "detail": c.detail} for c in changes])
        for change in changes:
            self.say(f"{change.action} {change.id}{f': {change.detail}' if change.detail else ''}")
        done = sum(change.action != "skip" for change in changes)
        self.stderr.write(f"{done} changes{' would be made' if options['dry_run'] else ''}.")
        return None


def _read(path: str) -> object:
    """The JSON value in a file. Raises CommandError."""
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        return parse_definitions(decode_definitions(data))
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error}", returncode=USAGE) from error
    except InvalidDefinitions as error:
        raise CommandError(f"{path}: {error}", returncode=USAGE) from error
