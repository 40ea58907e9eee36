"""Addresses as people write them: ``orders``, ``queue:orders``, ``topic:prices``, and of routes also ``peer:bob``."""

from __future__ import annotations

from queues.errors import BrokerError
from queues.formats.texts import is_storable, shown
from queues.permissions.rules import MAILBOX_PREFIX, SUBSCRIPTION_PREFIX, Operation, Protocol, is_allowed

#: Characters of a name, at most.
MAX_NAME = 255
KINDS = ("queue", "topic")
#: Characters of a peer's name, at most.
MAX_PEER = 240

#: The error text for an address that the table of `queues.permissions.rules` does not allow.
SYSTEMS = "names beginning with _ are the system's, and those of Celery's queues are Celery's"


class InvalidAddress(BrokerError, ValueError):
    """An address is NAME, queue:NAME or topic:NAME, and a name has 1 to 255 characters, none of them NUL."""

    def __init__(self, address: object, problem: str) -> None:
        super().__init__(f"{shown(address)} is no address: {problem}.")
        self.address = address


def queue_words(name: str) -> str:
    """What people call a queue: of a subscription's its topic, of a mailbox the peer, else its name."""
    if name.startswith(MAILBOX_PREFIX):
        return f"peer {name.removeprefix(MAILBOX_PREFIX)}"
    id, _, topic = name.removeprefix(SUBSCRIPTION_PREFIX).partition("/")
    return f"{topic}, subscription {id}" if topic and name.startswith(SUBSCRIPTION_PREFIX) else name


def parse_address(text: str) -> tuple[str, str]:
    """The kind and the name of an address; a bare name is a queue's. Raises InvalidAddress, TypeError."""
    if not isinstance(text, str):
        raise TypeError(f"an address is a str, not {type(text).__name__}")
    kind, colon, name = text.partition(":")
    if colon and kind == "peer":
        raise InvalidAddress(text, "peers cannot be addressed here, only queues and topics; a route can lead to a peer")
    if not colon or kind not in KINDS:
        kind, name = "queue", text
    if problem := name_problem(name):
        raise InvalidAddress(text, problem)
    return kind, name


def parse_target(text: str) -> tuple[str, str]:
    """The kind and the name of where a route leads: as `parse_address`, and also "peer:NAME"."""
    kind, colon, name = text.partition(":") if isinstance(text, str) else ("", "", "")
    if not colon or kind != "peer":
        return parse_address(text)
    if problem := name_problem(name):
        raise InvalidAddress(text, problem)
    if len(name) > MAX_PEER:
        raise InvalidAddress(text, f"a peer's name has {MAX_PEER} characters at most")
    return kind, name


def queue_problem(name: str, protocol: Protocol, operation: Operation) -> str | None:
    """The reason to refuse a protocol's operation on this queue, or None: an invalid name, or no reach."""
    problem = name_problem(name)
    return problem if problem or is_allowed(protocol, operation, "queue", name) else SYSTEMS


def name_problem(name: str) -> str | None:
    """The problem with the name of a queue or topic, or None."""
    if not name:
        return "the name is empty"
    if len(name) > MAX_NAME:
        return f"the name has {len(name)} characters, at most {MAX_NAME} are allowed"
    if "\0" in name:
        return "the name has a NUL character, which cannot be stored"
    return None if is_storable(name) else "the name is not valid Unicode text"
