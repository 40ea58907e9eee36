"""The operators' commands to nodes, and the questions before them."""

from __future__ import annotations

from dataclasses import dataclass

from hydra.notifications import CommandAction


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCommand:
    """A command to a running node, and its question."""

    question: str
    #: A line under the question: the node and the object.
    line: str
    button: str
    done: str


REQUESTS = {
    CommandAction.RESIGN: NodeCommand(
        question="The node leaves IRC and leads no longer. The nodes elect a leader, which may be the same again:",
        line="{node} leads term {node.term}",
        button="Yes, stop leading",
        done="Asked {node} to stop leading.",
    ),
    CommandAction.DROP: NodeCommand(
        question="All nodes close their links to it. A node that runs comes back by itself, with another id and the "
        "vote that it has; one that is gone loses its vote if that makes a majority smaller:",
        line="{name}, id {number}",
        button="Yes, drop it",
        done="Asked {node} to drop {name}.",
    ),
    CommandAction.DISCONNECT_LINK: NodeCommand(
        question="This closes the link. The node that has dialled it connects again by itself:",
        line="{node}, link {number}",
        button="Yes, close the link",
        done="Asked {node} to close link {number}.",
    ),
}
FORGET = (
    "This deletes the node's promises. Started again under its name it is another voter, without a vote until the "
    "others give it one. Its present vote stays without a node, and is missing for a majority until a leader removes "
    "it. A network whose last voters are forgotten is gone:"
)
