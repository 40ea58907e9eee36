"""What operators can ask of nodes, and the questions before it."""

from __future__ import annotations

from dataclasses import dataclass

from hydra.control import Action


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What an operator can ask of a running node, after a question."""

    action: Action
    question: str
    #: A line under the question: the node, and what of it.
    line: str
    button: str
    done: str


REQUESTS = {
    "resign": Request(
        action=Action.RESIGN,
        question="The node leaves IRC and leads no longer. The nodes elect a leader, which may be the same again:",
        line="{node} leads term {node.term}",
        button="Yes, stop leading",
        done="Asked {node} to stop leading.",
    ),
    "drop": Request(
        action=Action.DROP,
        question="All nodes close their links to it. A node that runs comes back by itself, with another id and the "
        "vote that it has; one that is gone loses its vote if that makes a majority smaller:",
        line="{name}, id {number}",
        button="Yes, drop it",
        done="Asked {node} to drop {name}.",
    ),
    "disconnect_link": Request(
        action=Action.DISCONNECT_LINK,
        question="This closes the link. Whoever has dialled it connects again by itself:",
        line="{node}, link {number}",
        button="Yes, close the link",
        done="Asked {node} to close link {number}.",
    ),
}
FORGET = (
    "This deletes what the node has promised. Started again under its name it is another voter, without a vote until "
    "the others give it one. The vote that it has now is nobody's then, and is missed for a majority until a leader "
    "takes it away. A network whose last voters are forgotten is gone:"
)
