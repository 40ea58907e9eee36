"""What a transport raises beside what psycopg does."""

from __future__ import annotations

from kombu.exceptions import ChannelError


class NoSuchQueue(ChannelError):  # type: ignore[misc]
    """There is no queue of this name, and a message that is to be kept has nowhere else to go."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        super().__init__(f"NOT_FOUND - no queue {queue!r}", (50, 10), "Channel.basic_publish", 404)


class QueueIsFull(ChannelError):  # type: ignore[misc]
    """The queue holds as many messages as it may and refuses more."""

    def __init__(self, queue: str) -> None:
        super().__init__(f"RESOURCE_ERROR - the queue {queue!r} is full", (60, 40), "Channel.basic_publish", 506)


class QueueIsKept(ChannelError):  # type: ignore[misc]
    """The queue is not temporary: it is deleted in the admin, where one sees what goes with it."""

    def __init__(self, queue: str) -> None:
        super().__init__(f"ACCESS_REFUSED - {queue!r} is deleted in the admin", (50, 40), "Channel.queue_delete", 403)


class InvalidQueueName(ChannelError):  # type: ignore[misc]
    """A queue cannot have this name."""

    def __init__(self, queue: str, problem: str) -> None:
        super().__init__(f"ACCESS_REFUSED - {queue!r}: {problem}", (50, 10), "Channel.queue_declare", 403)


class Unstorable(ValueError):
    """A message cannot be stored as it is; the text says why."""
