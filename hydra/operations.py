"""Operators' actions on Hydra's nodes, over Django's connection."""

from __future__ import annotations

from django.db import DEFAULT_DB_ALIAS, connections, transaction

from hydra.models import Link, Member, Node, NodeRole
from hydra.notifications import CHANNEL, CommandAction, OperatorCommand
from queues.errors import OperationError


class NodeRunning(OperationError):
    """The node runs."""


class NodeNotRunning(OperationError):
    """The node does not run."""


class NotPossible(OperationError):
    """The node's state does not allow this any more."""


def forget_node(node: Node) -> None:
    """Delete a node's row with its term, pledge and electorate; its votes stay on record. Raises NodeRunning.

    Started again under its name it is another voter.
    """
    with transaction.atomic():
        if not Node.objects.try_lock(node.pk):
            raise NodeRunning(f"The node {node.name!r} runs: stop it first.")
        Node.objects.filter(pk=node.pk).delete()


def ask(node: Node, action: CommandAction, by: str, number: int | None = None) -> OperatorCommand:
    """Send a running node a command, at the commit; returns the command.

    Raises NodeNotRunning, and NotPossible if the node's row shows that it cannot.
    """
    now = Node.objects.with_running().filter(pk=node.pk).first()
    if now is None or not now.running or now.run is None:
        raise NodeNotRunning(f"The node {node.name!r} does not run.")
    if action is not CommandAction.DISCONNECT_LINK and now.role != NodeRole.LEADING:
        raise NotPossible(f"The node {node.name!r} does not lead.")
    if action is CommandAction.DROP and not Member.objects.filter(node=now, member=number or 0).exists():
        raise NotPossible(f"The node {node.name!r} knows no node {number} any more.")
    if action is CommandAction.DISCONNECT_LINK and not Link.objects.filter(node=now, number=number or 0).exists():
        raise NotPossible(f"The node {node.name!r} has no link {number} any more.")
    command = OperatorCommand(node=now.name, run=now.run, action=action, by=by, number=number)
    send(command)
    return command


def send(command: OperatorCommand, using: str = DEFAULT_DB_ALIAS) -> None:
    """Notify the node if and when the current transaction of Django's connection commits."""
    with connections[using].cursor() as cursor:
        cursor.execute("select pg_notify(%s, %s)", [CHANNEL, command.payload])
