"""Common to the benches of the control room: the options of the store's size, and a database that is filled."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import django
import psycopg


def parser_of(description: str, messages: int) -> argparse.ArgumentParser:
    """A parser with the options that say how large the store is."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--messages", type=int, default=messages)
    parser.add_argument("--queues", type=int, default=2_000)
    parser.add_argument("--connections", type=int, default=500, help="and as many workers, peers, subscribers")
    return parser


def tell(text: str) -> None:
    """Say how far a bench is, beside its results."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def filled_database(name: str, given: argparse.Namespace) -> Iterator[str]:
    """A database of its own, as large as was asked for, to which this process's default connection leads; its alias."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "brokersite.settings")
    django.setup()
    from django.db import DEFAULT_DB_ALIAS, connections

    from brokersite.rigs.etl.scratch import scratch_database
    from queues.database.parameters import connection_parameters
    from tests.rigs.control_room.store import Size, fill

    with scratch_database(name) as alias:
        with psycopg.connect(**connection_parameters(alias), autocommit=True) as connection:
            connection.execute("set synchronous_commit = off")
            fill(connection.cursor(), Size(given.messages, given.queues, given.connections), tell)
            tell("vacuum")
            connection.execute("vacuum analyze")
        connections[DEFAULT_DB_ALIAS].settings_dict["NAME"] = alias  # for this process, which ends with it
        yield alias
