"""The errors that clients of the wire protocols raise by themselves."""


class ClientError(Exception):
    """The base of every error that a client raises by itself."""


class ConnectionLost(ClientError, ConnectionError):
    """The connection is gone: connect again. What was not confirmed may or may not have been taken."""


class TlsFailed(ConnectionLost):
    """TLS was refused by either side, or broken. The message says why; connecting again in the same way won't help."""


class ReplyTimeout(ClientError, TimeoutError):
    """The broker said nothing for too long. The connection has been closed: connect again."""


class ProtocolViolation(ClientError):
    """The other side does not speak this protocol. The connection has been closed."""


def again(error: ClientError) -> ClientError:
    """Return a copy of the error that ended a client, for each caller that raises it."""
    copy = type(error)(*error.args)
    copy.__cause__ = error.__cause__
    return copy
