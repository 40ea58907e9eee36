"""``python -m tests.rigs.etl_soak``: test that exports are exact and harmless, under load, some of them killed.

Exits with 1 if the output differs from the archive.
"""

from __future__ import annotations

import argparse
import json
import os
import sys

import django

#: The options: name, default, least value, meaning.
OPTIONS = (
    ("messages", 200_000, 1, "messages of the load"),
    ("runs", 20, 1, "whole runs"),
    ("kills", 2, 0, "killed runs of each stage"),
    ("pairs", 5, 0, "phases at full pace, beside a run and without"),
    ("seconds", 3600, 1, "time after which nothing new begins"),
    ("seed", 0, 0, "order and moments of the kills"),
)


def main(arguments: list[str] | None = None) -> int:
    """Run the soak on a database of its own on the configured server; returns 0 if it passed, else 1."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "brokersite.settings")
    django.setup()
    from queues.management.shell import ended_by_sigterm, number
    from tests.rigs.etl_soak.report import SoakPlan
    from tests.rigs.etl_soak.runner import Soak

    parser = argparse.ArgumentParser(prog="python -m tests.rigs.etl_soak", description=__doc__)
    for name, default, least, meaning in OPTIONS:
        parser.add_argument(
            f"--{name}", type=number(least), default=default, metavar="N", help=f"{meaning}; default: %(default)s"
        )
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = vars(parser.parse_args(arguments))
    as_json = given.pop("json")
    with ended_by_sigterm():
        report = Soak(SoakPlan(**given), lambda text: print(text, file=sys.stderr)).run()
    if as_json:
        print(json.dumps(report.figures | {"passed": report.passed, "differences": report.comparison.differences}))
    else:
        print("\n".join(report.lines()))
    return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(main())
