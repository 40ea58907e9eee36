"""Links of Hydra's nodes among the connections that operators see."""

from __future__ import annotations

from django.db import transaction
from django.urls import reverse

from hydra import operations
from hydra.models import Link, Node
from hydra.notifications import CommandAction
from queues.operations.audit_log import record
from queues.operations.connections import ConnectionGone, OtherConnection


class LinkSource:
    """The links of nodes that run: a `queues.operations.connections.Source`. An id is `hydra:NODE-LINK`."""

    word = "hydra"

    def connections(self, most: int) -> list[OtherConnection]:
        """The links that are open now, the first `most`."""
        running = [node.pk for node in Node.objects.with_running() if node.running]
        links = Link.objects.filter(node__in=running).select_related("node").order_by("node", "number")[:most]
        return [
            OtherConnection(
                id=f"{self.word}:{link.node_id}-{link.number}", protocol=self.word, address=link.target or link.origin,
                name=link.peer_tag, node=link.node.name, connected_at=link.opened_at,
                page=reverse("admin:hydra_node_change", args=[link.node_id]),
            )
            for link in links
        ]  # fmt: skip

    def disconnect(self, id: str, by: str) -> None:
        """Close a link; a node dials its own again. Raises ConnectionGone, NodeNotRunning or NotPossible."""
        node, _, number = id.removeprefix(f"{self.word}:").partition("-")
        link = Link.objects.select_related("node").filter(node__in=_id(node), number__in=_id(number)).first()
        if link is None:
            raise ConnectionGone(f"There is no link {id} any more.")
        with transaction.atomic():
            operations.ask(link.node, CommandAction.DISCONNECT_LINK, by, link.number)
            record(by, "disconnect_link", f"hydra:{link.node}", f"link {link.number}")


def _id(text: str) -> list[int]:
    """A number of an id; none if it is no number that a row can have."""
    return [int(text)] if text.isascii() and text.isdigit() and len(text) < 10 else []
