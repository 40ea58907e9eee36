"""What operators ask of running nodes, over LISTEN and NOTIFY.

A command is for one process: the run of a node that the operator has looked at. If that has ended it means nothing.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final
from uuid import UUID

from django.db import DEFAULT_DB_ALIAS, connections

CHANNEL: Final = "hydra_control"


class Action(StrEnum):
    """What a node may be asked to do."""

    RESIGN = "resign"
    """Stop leading; the node stays in the network."""
    DROP = "drop"
    """Remove the node with the id `number` from the network."""
    DISCONNECT_LINK = "disconnect_link"
    """Close the link `number`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Something that an operator asks of a node."""

    node: str
    """The node's stable name."""
    run: UUID
    """Which of its processes: `hydra.models.Node.run`."""
    action: Action
    by: str
    """Who asks."""
    number: int | None = None
    """The number of a link, or the id of a node; None for RESIGN."""

    def __str__(self) -> str:
        wording = {
            Action.RESIGN: "stop leading",
            Action.DROP: f"drop node {self.number}",
            Action.DISCONNECT_LINK: f"close link {self.number}",
        }
        return f"{self.by} asks to {wording[self.action]}"


def send(command: Command, using: str = DEFAULT_DB_ALIAS) -> None:
    """Tell the node, if and when the current transaction of Django's connection commits."""
    fields = {name: value for name, value in asdict(command).items() if value is not None}
    with connections[using].cursor() as cursor:
        cursor.execute("select pg_notify(%s, %s)", [CHANNEL, json.dumps(fields, default=str)])


def parse_command(payload: str) -> Command:
    """Read what `send` has sent. Raises ValueError, which says what is wrong."""
    fields = json.loads(payload)
    if not isinstance(fields, dict):
        raise ValueError("a command is a JSON object")
    number, by = fields.get("number"), fields.get("by", "")
    action = Action(str(fields.get("action")))
    if isinstance(number, bool) or not isinstance(number, int | None):
        raise ValueError(f"number is {number!r}")
    if (number is None) != (action is Action.RESIGN):
        raise ValueError(f"{action} with number {number!r}")
    if not (isinstance(fields.get("node"), str) and isinstance(fields.get("run"), str) and isinstance(by, str)):
        raise ValueError("node, run and by are strings")
    return Command(node=fields["node"], run=UUID(fields["run"]), action=action, by=by, number=number)
