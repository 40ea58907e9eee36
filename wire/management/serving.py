"""Shared by the commands that serve until a signal: types of their arguments, what they print, errors in words."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import psycopg
from django.core.management.base import BaseCommand, CommandError
from django.db import ProgrammingError

from queues.engine.api import absence, lacked_right
from queues.errors import BrokerError
from queues.permissions.addresses import queue_problem
from queues.permissions.rules import Operation, Protocol
from wire.net.address import parse_address

T = TypeVar("T")


def argument(read: Callable[[str], T]) -> Callable[[str], T]:
    """The type of an argument that `read` reads: argparse tells its ValueErrors in full."""

    def told(text: str) -> T:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return told


def or_off(read: Callable[[str], T]) -> Callable[[str], T | None]:
    """The type of an argument that may be the word off."""
    return lambda text: None if text == "off" else read(text)


#: The types of an argument HOST:PORT.
address = argument(parse_address)
address_or_off = or_off(address)


#: The listeners of runwire and where they listen unless told otherwise.
LISTENERS = {"blipmq": "127.0.0.1:5555", "overhop": "127.0.0.1:9876", "sspq": "127.0.0.1:8888"}


def add_listeners(parser: argparse.ArgumentParser) -> None:
    """Add an argument for the address of each listener."""
    for name, default in LISTENERS.items():
        parser.add_argument(
            f"--{name}", type=address_or_off, default=default, metavar="HOST:PORT|off",
            help=f"the address of the {name} listener (default: %(default)s)",
        )  # fmt: skip


def queue_of(protocol: Protocol) -> Callable[[str], str]:
    """The type of an argument that is the name of a queue within a protocol's reach."""

    def read(text: str) -> str:
        if problem := queue_problem(text, protocol, Operation.CONSUME):
            raise ValueError(f"{text}: {problem}")
        return text

    return argument(read)


class ServerCommand(BaseCommand):
    """A command that serves; `serve` returns when it is to end."""

    #: Errors that are told in a line; any other shows its traceback.
    refusals: ClassVar[tuple[type[Exception], ...]] = (BrokerError, OSError)

    def serve(self, options: dict[str, Any]) -> None:
        """Serve until SIGTERM or Ctrl-C."""
        raise NotImplementedError

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            self.serve(options)
        except psycopg.OperationalError as error:
            raise CommandError(absence(error, "The database cannot be reached")) from error
        except (psycopg.ProgrammingError, ProgrammingError) as error:
            if (refusal := lacked_right(error)) is None:
                raise
            raise CommandError(refusal) from error
        except self.refusals as error:
            raise CommandError(str(error)) from error

    def announce(self, line: str) -> None:
        """Print a line at once."""
        self.stdout.write(line)
        self.stdout.flush()
