"""Operators' commands to running nodes, as they travel over LISTEN and NOTIFY. No I/O.

A command names one process: the run of a node that the operator has seen. Once that run has ended it has no effect.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final
from uuid import UUID

CHANNEL: Final = "hydra_control"


class CommandAction(StrEnum):
    """The commands to a node."""

    RESIGN = "resign"
    """Stop leading; the node stays in the network."""
    DROP = "drop"
    """Remove the node with the id `number` from the network."""
    DISCONNECT_LINK = "disconnect_link"
    """Close the link `number`."""


_TEXTS: Final = {
    CommandAction.RESIGN: "stop leading",
    CommandAction.DROP: "drop node {}",
    CommandAction.DISCONNECT_LINK: "close link {}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorCommand:
    """An operator's command to a node."""

    node: str
    """The node's stable name."""
    run: UUID
    """The node's process: `hydra.models.Node.run`."""
    action: CommandAction
    by: str
    """The operator."""
    number: int | None = None
    """The number of a link, or the id of a node; None for RESIGN."""

    def __str__(self) -> str:
        return f"{self.by} asks to {_TEXTS[self.action].format(self.number)}"

    @property
    def payload(self) -> str:
        """The notification's text."""
        return json.dumps({name: value for name, value in asdict(self).items() if value is not None}, default=str)


def parse_command(payload: str) -> OperatorCommand:
    """Read a `OperatorCommand.payload`. Raises ValueError, which names the fault."""
    fields = json.loads(payload)
    if not isinstance(fields, dict):
        raise ValueError("a command is a JSON object")
    number, by = fields.get("number"), fields.get("by", "")
    action = CommandAction(str(fields.get("action")))
    if isinstance(number, bool) or not isinstance(number, int | None):
        raise ValueError(f"number is {number!r}")
    if (number is None) != (action is CommandAction.RESIGN):
        raise ValueError(f"{action} with number {number!r}")
    if not (isinstance(fields.get("node"), str) and isinstance(fields.get("run"), str) and isinstance(by, str)):
        raise ValueError("node, run and by are strings")
    return OperatorCommand(node=fields["node"], run=UUID(fields["run"]), action=action, by=by, number=number)
