"""``manage.py settingsdoc``: the page that lists every environment variable."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from brokersite.environment import CHECKOUT, IN_CHECKOUT, Environment
from brokersite.settingsdoc import page

#: An installation has no pages: there the text is printed.
PAGE = CHECKOUT / "docs" / "settings.md" if IN_CHECKOUT else None


class Command(BaseCommand):
    """Write docs/settings.md, or tell whether it is current; in an installation, print it."""

    help = "Write docs/settings.md, the list of all environment variables; an installation prints it."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when the page is not current")

    def handle(self, *args: Any, **options: Any) -> None:
        text = page(Environment)
        if PAGE is None:
            self.stdout.write(text)
        elif not options["check"]:
            PAGE.parent.mkdir(exist_ok=True)
            PAGE.write_text(text, encoding="utf-8")
            self.stdout.write(f"{PAGE} written")
        elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
            raise CommandError(f"{PAGE} is not current: run `manage.py settingsdoc`.")
