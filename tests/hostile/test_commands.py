"""Management commands: arguments at and past every limit. The answer is clear, and nothing else is harmed."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from django.core.management import load_command_class
from hypothesis import given
from hypothesis import strategies as st

from tests.hostile.operator import Operator
from tests.hostile.unharmed import Neighbour, drawn
from tests.hostile.values import INTEGERS, texts
from tests.wire.broker import Database

COMMANDS = ("queue", "apikey", "route", "audit", "periodic", "etl")
#: Arguments that take a file's name, and commands that start a Spark: not for this test.
FILES = {"file", "key_file", "anchors", "body_schema"}
SPARK = {("etl", "run")}
#: Numbers, texts and bytes that have done harm once, or might.
VALUES = (
    "", "\0", "a\0b", "\udcff", "x" * 100_000, "😀" * 256, "queue:", "nan", "9" * 5000,
    *map(str, (INTEGERS[0], 2**31 - 1, 2**63 - 1)), "* * * * *", "{", "queue:x", "\n",
)  # fmt: skip
TEXTS = texts(2000) | st.sampled_from(VALUES) | st.sampled_from(INTEGERS).map(str)


class Sub(NamedTuple):
    """A subcommand and its arguments."""

    words: tuple[str, str]
    positional: list[argparse.Action]
    options: list[argparse.Action]


def subcommands() -> Iterator[Sub]:
    for command in COMMANDS:
        parser = load_command_class("queues", command).create_parser("manage.py", command)
        general = {action.dest for action in parser._actions}
        [choices] = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        for name, sub in (choices or {}).items():
            own: list[argparse.Action] = [
                action for action in sub._actions if action.dest not in FILES | general | {"help"}
            ]
            if (command, name) not in SPARK:
                yield Sub(
                    (command, name),
                    [action for action in own if not action.option_strings],
                    [action for action in own if action.option_strings],
                )


SUBCOMMANDS = list(subcommands())


def arguments(sub: Sub, given: dict[str, str]) -> list[str]:
    """A command line: every positional argument, and the options that are given. What asks is answered yes."""
    line: list[str] = [*sub.words]
    for action in sub.options:
        if action.dest == "yes":
            line.append("--yes")
        elif action.dest in given and action.nargs == 0:
            line.append(action.option_strings[-1])
        elif action.dest in given:
            line.append(f"{action.option_strings[-1]}={given[action.dest]}")
    return [*line, "--", *(given.get(action.dest, "x") for action in sub.positional)]


@pytest.fixture(scope="module")
def operator(store: Database) -> Iterator[Operator]:
    made = Operator(store)
    yield made
    made.close()


pytestmark = pytest.mark.usefixtures("nothing_else_harmed")


@pytest.mark.parametrize("sub", SUBCOMMANDS, ids=lambda sub: "-".join(sub.words))
def test_a_kept_value_in_any_argument_is_answered_clearly(operator: Operator, sub: Sub) -> None:
    taking = [action for action in sub.options if action.nargs != 0]
    for n, value in enumerate(VALUES):
        if sub.positional:
            operator.runs(*arguments(sub, {action.dest: value for action in sub.positional}))
        if taking:
            operator.runs(*arguments(sub, {taking[n % len(taking)].dest: value}))


@st.composite
def lines(draw: st.DrawFn) -> list[str]:
    sub = draw(st.sampled_from(SUBCOMMANDS))
    every: list[Any] = [*sub.positional, *sub.options]
    names = draw(st.lists(st.sampled_from(every), max_size=5)) if every else []
    return arguments(sub, {action.dest: draw(TEXTS) for action in names})


@drawn
@given(lines())
def test_a_drawn_command_is_answered_clearly(operator: Operator, neighbour: Neighbour, line: list[str]) -> None:
    operator.runs(*line)
    neighbour.served()
