"""What the command line is asked for. The settings depend on it: help, and commands without a database, need none."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from itertools import takewhile

from django.core.exceptions import ImproperlyConfigured

from brokersite.environment import Environment


class Purpose(Enum):
    """What a process loads the settings for."""

    #: A server, a worker, a script of somebody's own: its database is looked for at once.
    PROGRAM = auto()
    #: A command: where no database can be had, the first use of one says so.
    COMMAND = auto()
    #: Texts of the program itself: nothing is read, started or made.
    HELP = auto()


#: Set by the command line before the settings are loaded.
purpose = Purpose.PROGRAM

#: Commands that write texts of the program.
TEXTS = ("help", "settingsdoc", "version", "--version")

#: Values that help does not show, and that would be read from files, or made.
SECRETS: Mapping[str, str] = {"SECRET_KEY": "help shows no secret, and needs none", "BROKER_HYDRA_SECRET": "off"}


def purpose_of(arguments: Sequence[str]) -> Purpose:
    """What the arguments behind the program's name ask for."""
    options = set(takewhile(lambda word: word != "--", arguments))
    asks = not arguments or arguments[0] in TEXTS or options & {"-h", "--help"}
    return Purpose.HELP if asks else Purpose.COMMAND


def read_environment() -> Environment:
    """The environment's options; help has their defaults where they are not valid. Raises InvalidEnvironment."""
    if purpose is not Purpose.HELP:
        return Environment.read(os.environ)
    try:
        return Environment.read({**os.environ, **SECRETS})
    except ImproperlyConfigured:
        return Environment.read(SECRETS)
