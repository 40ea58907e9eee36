"""The exceptions of peerbus, besides ConnectionLost, ReplyTimeout and ProtocolViolation of `wire.client.errors`.

A close of the broker before it has said `peers` is a Rejected, of the class that belongs to its reason if there is
one (docs/protocols/peerbus.md, "Closes"):

    try:
        client.connect()
    except NameClaimed:
        ...  # another token has the name
"""

from typing import ClassVar

from wire.client.errors import ClientError


class InvalidEnvelope(ClientError, ValueError):
    """The message cannot be an envelope: no recipient, a body without a JSON form, an id that is too long."""


class MessageTooLarge(InvalidEnvelope):
    """Delivered, the message would be over 1 MiB; it was not sent, the broker would drop it."""


class WeakSecret(ClientError, ValueError):
    """A secret has 32 bytes or more. Without one (None) nothing is signed and nothing is verified."""


class LineTooLong(ClientError, ValueError):
    """A line is over 1 MiB. Its end cannot be found, so nothing after it can be decoded."""


class NoAnswer(ClientError, TimeoutError):
    """The broker has not answered in time, connected or not. Unconfirmed messages are kept and sent again."""


class TakenOver(ClientError):
    """Another connection with the same token has registered under this name: this client does not come back.

    Messages that were delivered here and not acknowledged are delivered there.
    """


class Rejected(ClientError):
    """The broker closed the connection instead of registering us."""

    _classes: ClassVar[dict[str, "type[Rejected]"]] = {}

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code, reason)
        #: The WebSocket's close code.
        self.code = code
        #: The broker's text.
        self.reason = reason

    def __init_subclass__(cls, *, reason: str) -> None:
        Rejected._classes[reason] = cls

    def __str__(self) -> str:
        return f"{self.reason or 'no reason given'} ({self.code})"


class InvalidToken(Rejected, reason="invalid bearer token"):
    """The broker does not know the token, or it is not allowed to speak peerbus."""


class NameClaimed(Rejected, reason="name claimed under a different token"):
    """The name belongs to another token: take another name, or have an operator free it."""


class UnsupportedVersion(Rejected, reason="unsupported protocol version"):
    """The broker does not speak peerbus v1."""


class UnusableName(Rejected, reason="peer name cannot be used"):
    """A name has up to 240 characters and no NUL, is not `*`, and does not begin with `queue:` or `topic:`."""


def rejected(code: int, reason: str) -> Rejected:
    """Return the exception for a close before `peers`."""
    return Rejected._classes.get(reason, Rejected)(code, reason)
