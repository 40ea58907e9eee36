"""What connections send to the mailbox service, each item of one connection: letters and acknowledgements are runs.

A run is what a connection has sent in one go, as columns; it becomes part of one transaction as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence

from queues.engine.isolation import halves
from queues.engine.mailbox.mailbox import Mailbox, Out
from queues.engine.publish.destination import Destination


class Letters:
    """Letters to store, in order. A recipient is a peer's name; None: everyone who is connected. `keys` are their ids,
    unique over all senders, of 1 to 512 bytes without NUL. `size`: bytes."""

    __slots__ = ("bodies", "keys", "mailbox", "recipients", "size")

    def __init__(self, mailbox: Mailbox, keys: list[str], recipients: list[str | None], bodies: list[bytes]) -> None:
        self.mailbox = mailbox
        self.keys = keys
        self.recipients = recipients
        self.bodies = bodies
        self.size = sum(map(len, bodies))

    @property
    def parts(self) -> list[Letters]:
        """The run in two; nothing of one letter."""
        keys, recipients, bodies = halves(self.keys), halves(self.recipients), halves(self.bodies)
        return [Letters(self.mailbox, *columns) for columns in zip(keys, recipients, bodies, strict=True)]


class Forward:
    """A letter to a queue or topic."""

    __slots__ = ("body", "destination", "keys", "mailbox", "size")

    def __init__(self, mailbox: Mailbox, key: str, destination: Destination, body: bytes) -> None:
        self.mailbox = mailbox
        self.keys = [key]
        self.destination = destination
        self.body = body
        self.size = len(body)

    @property
    def key(self) -> str:
        """The letter's id."""
        return self.keys[0]


class Acks:
    """Letters that their recipient has consumed, by their keys. A key that is not its own, or any more, changes
    nothing.

    `out`: of each the id and the time of its delivery (monotonic), if it was out when everything before was durable and
    delivered.
    """

    __slots__ = ("keys", "mailbox", "out", "size")

    def __init__(self, mailbox: Mailbox, keys: list[str], out: Sequence[Out | None] = ()) -> None:
        self.mailbox = mailbox
        self.keys = keys
        self.size = sum(map(len, keys))
        self.out = out or [None] * len(keys)

    def begin(self) -> bool:
        """Everything before is durable and delivered: the letters are out no more. Returns whether any was."""
        self.out = self.mailbox.release(self.keys)
        return any(self.out)

    def forget_ids(self) -> None:
        """The store has another past: the letters are found by their keys alone."""
        self.out = [None] * len(self.keys)

    @property
    def parts(self) -> list[Acks]:
        """The run in two; nothing of one acknowledgement."""
        columns = zip(halves(self.keys), halves(self.out), strict=True)
        return [Acks(self.mailbox, keys, out) for keys, out in columns]


class Ask:
    """A connection wants to know the names of all that are connected, once everything before is durable: `answer` of
    its holder is called with them."""

    __slots__ = ("keys", "mailbox", "size")

    def __init__(self, mailbox: Mailbox) -> None:
        self.mailbox = mailbox
        self.keys = [""]
        self.size = 0


#: What connections send. `keys` has one entry for each letter, acknowledgement or question.
Sent = Letters | Forward | Acks | Ask
