"""The errors that clients of the wire protocols raise by themselves."""

import ssl


class ClientError(Exception):
    """The base of every error that a client raises by itself."""

    @property
    def passing(self) -> bool:
        """Whether the same may succeed later: a client goes on connecting."""
        return False


class ConnectionLost(ClientError, ConnectionError):
    """The connection is gone. What was not confirmed may or may not have been taken."""

    @property
    def passing(self) -> bool:
        return True


class TlsFailed(ConnectionLost):
    """TLS was refused by either side, or broken. The message says why; connecting again in the same way won't help."""

    @property
    def passing(self) -> bool:
        # A broker that is killed within the handshake ends it without an error of TLS.
        return not isinstance(self.__cause__, ssl.SSLError)


class ReplyTimeout(ClientError, TimeoutError):
    """The broker said nothing for too long. The connection has been closed."""

    @property
    def passing(self) -> bool:
        return True


class ProtocolViolation(ClientError):
    """The other side does not speak this protocol. The connection has been closed."""


def again(error: ClientError) -> ClientError:
    """Return a copy of the error that ended a client, for each caller that raises it."""
    copy = type(error)(*error.args)
    copy.__cause__ = error.__cause__
    return copy
