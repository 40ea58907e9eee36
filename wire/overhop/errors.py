"""The errors of an Overhop client, besides ConnectionLost, ReplyTimeout and ProtocolViolation of `wire.client.errors`.

A refusal by the broker is an OverhopError, of the class that belongs to its code if there is one:

    try:
        client.enqueue("emails", {"to": "ada@example.org"})
    except QueueNotFound:
        client.create_queue("emails")
"""

from typing import ClassVar, Final

from wire.client.errors import ClientError
from wire.overhop.codec.names import Code

#: Refusals of a connection after which another attempt may succeed.
PASSING: Final = frozenset((Code.UNAVAILABLE, Code.CONNECTION_TIMEOUT, Code.REGISTER_TIMEOUT))


class MessageTooLarge(ClientError, ValueError):
    """The message is over the limit of the client, and was not sent: the broker would hang up on it."""


class OverhopError(ClientError):
    """The broker refused a request with an ERR. The connection stays usable, except after RequestRejected."""

    _classes: ClassVar[dict[str, "type[OverhopError]"]] = {}

    def __init__(self, code: str, msg: str = "", details: object = None) -> None:
        super().__init__(code, msg, details)
        #: The reason for programs: one of `wire.overhop.codec.names.Code`.
        self.code = code
        #: The reason for people.
        self.msg = msg
        #: Further details from the broker.
        self.details = details
        #: After `enqueue_many`: the id of each job in the order given, None for those that were refused.
        self.jids: list[str | None] = []

    def __init_subclass__(cls, *, code: Code) -> None:
        OverhopError._classes[code] = cls

    @property
    def passing(self) -> bool:
        return self.code in PASSING

    def __str__(self) -> str:
        return f"{self.code}: {self.msg}" if self.msg else self.code


def refusal(payload: dict[str, object]) -> OverhopError:
    """Return the exception for the payload of an ERR. Raises KeyError or TypeError if it is not one."""
    code, msg = payload["code"], payload.get("msg", "")
    if not isinstance(code, str) or not isinstance(msg, str):
        raise TypeError("code and msg of an ERR are strings")
    return OverhopError._classes.get(code, OverhopError)(code, msg, payload.get("details"))


class RequestRejected(OverhopError, code=Code.PROTOCOL_VIOLATION):
    """The request has the wrong shape, such as a text where a number belongs. The broker then hangs up."""


class QueueNotFound(OverhopError, code=Code.QUEUE_NOT_FOUND):
    """There is no queue of this name: make it with `create_queue`."""


class DuplicateQueue(OverhopError, code=Code.DUPLICATE_QUEUE):
    """There is a queue of this name already."""


class InvalidQueueName(OverhopError, code=Code.INVALID_QUEUE_NAME):
    """A name is a letter or digit, then letters, digits, `_` and `-`, all ASCII."""


class QueueNotEmpty(OverhopError, code=Code.QUEUE_NOT_EMPTY):
    """A queue with jobs cannot be deleted: remove them, or wait until they are done."""


class QueueAlreadyPaused(OverhopError, code=Code.QUEUE_ALREADY_PAUSED):
    """The queue is paused as it is."""


class QueueAlreadyRunning(OverhopError, code=Code.QUEUE_ALREADY_RUNNING):
    """The queue is not paused."""


class QueueFull(OverhopError, code=Code.QUEUE_FULL):
    """The queue has as many jobs as it may hold: enqueue again later."""


class SystemQueueForbidden(OverhopError, code=Code.SYSTEM_QUEUE_FORBIDDEN):
    """Queues whose names begin with `_` are the broker's own."""


class DuplicateSubscription(OverhopError, code=Code.DUPLICATE_SUBSCRIPTION):
    """This connection is subscribed to the queue already: `grant` that subscription more credits."""


class SubscriptionNotFound(OverhopError, code=Code.SUBSCRIPTION_NOT_FOUND):
    """This connection has no such subscription."""


class InvalidCredits(OverhopError, code=Code.INVALID_CREDITS):
    """Credits are a whole number: 0 or more to subscribe, 1 or more to grant, at most 2**32 - 1."""


class InvalidMaxAttempts(OverhopError, code=Code.INVALID_MAX_ATTEMPTS):
    """The number of attempts is out of range: it begins with 1."""


class InvalidRetryInterval(OverhopError, code=Code.INVALID_RETRY_INTERVAL_MS):
    """The time between two attempts is out of range: it begins with a millisecond."""


class InvalidJobId(OverhopError, code=Code.INVALID_JOB_ID):
    """A job id is what `enqueue` returned: the name of a queue, a colon and a UUID."""


class InvalidJobPayload(OverhopError, code=Code.INVALID_JOB_PAYLOAD):
    """The broker does not take this payload."""


class InvalidStatusFilter(OverhopError, code=Code.INVALID_JOB_STATUS_FILTER):
    """The status is one of new, waiting, delayed, completed, failed, active."""


class InvalidPage(OverhopError, code=Code.INVALID_PAGE):
    """Pages are counted from 1."""


class InvalidPageSize(OverhopError, code=Code.INVALID_PAGE_SIZE):
    """The number of jobs on a page is out of range."""


class JobNotFound(OverhopError, code=Code.JOB_NOT_FOUND):
    """There is no such job, or it is not ours any more: its deadline has passed, and another has it."""


class JobNotRemovable(OverhopError, code=Code.JOB_STATUS_NOT_REMOVABLE):
    """Only a job that is delayed, new, failed or completed can be removed."""


class Forbidden(OverhopError, code=Code.FORBIDDEN):
    """The broker forbids this operation."""


class Unavailable(OverhopError, code=Code.UNAVAILABLE):
    """The broker cannot do this now, but perhaps later."""
