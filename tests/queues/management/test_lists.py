"""Common behaviour of all commands that list something."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from django.core.management import get_commands, load_command_class

#: The applications of this project that have commands.
APPS = ("brokersite", "hydra", "peers", "queues", "wire")
#: Subcommands that show rows; `export` and `listen` print JSON anyway.
LISTS = ("find", "list", "operations", "peek", "show", "verify")


def lists() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """The subcommands that list something, and commands that do nothing else."""
    for name, app in sorted(get_commands().items()):
        if app not in APPS:
            continue
        parser = load_command_class(app, name).create_parser("manage.py", name)
        if name == "top":
            yield name, parser
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                yield from ((f"{name} {do}", one) for do, one in action.choices.items() if do in LISTS)


def test_every_list_has_json() -> None:
    found = dict(lists())
    assert {"queue list", "peer list", "apikey list", "messages find", "audit show", "etl list", "top"} <= set(found)
    assert [name for name, parser in found.items() if "--json" not in parser.format_help()] == []
