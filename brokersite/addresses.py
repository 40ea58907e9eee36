"""The addresses that `up` is given: looked at before anything is loaded or started, and named by their options."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from brokersite.supervisor import SupervisorError, refuse_taken
from wire.management.serving import LISTENERS, add_listeners, address, address_or_off
from wire.net.address import HostPort

HTTP, HYDRA = "127.0.0.1:8000", "127.0.0.1:6174"


def add_addresses(parser: argparse.ArgumentParser) -> None:
    """Add an argument for the address of each program that listens."""
    parser.add_argument(
        "--http", type=address, default=HTTP, metavar="HOST:PORT",
        help="the address of the site: admin, health, metrics (default: %(default)s)",
    )  # fmt: skip
    add_listeners(parser)
    parser.add_argument(
        "--hydra", type=address_or_off, default=HYDRA, metavar="HOST:PORT|off",
        help="the address of the Hydra node (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--status", type=address, metavar="HOST:PORT",
        help="serve /healthz, /readyz and /metrics of the listeners here (default: nowhere)",
    )  # fmt: skip


def given_addresses(options: Mapping[str, Any]) -> dict[str, HostPort]:
    """The addresses by the names of their options, without those that are off."""
    return {name: options[name] for name in ("http", *LISTENERS, "hydra", "status") if options[name] is not None}


def refuse_taken_addresses(addresses: Mapping[str, HostPort]) -> None:
    """Raise SupervisorError with a line for each address that cannot be listened on, and its option."""
    problems = []
    for name, place in addresses.items():
        try:
            refuse_taken([place])
        except SupervisorError as error:
            off = "" if name in ("http", "status") else ", or off"
            problems.append(f"{error} Another one is given by --{name} HOST:PORT{off}.")
    if problems:
        raise SupervisorError("\n".join(problems))


def refuse_early(arguments: Sequence[str]) -> None:
    """Raise SupervisorError as above, from the arguments of `up`; arguments that are wrong are left to the command."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    add_addresses(parser)
    try:
        options, _ = parser.parse_known_args(arguments)
    except argparse.ArgumentError:
        return
    refuse_taken_addresses(given_addresses(vars(options)))
