"""Overhop's numbers and names: message types and error codes (docs/protocols/overhop.md)."""

from enum import IntEnum, StrEnum
from typing import Final

DEFAULT_PORT: Final = 9876
PROTOCOL_VERSION: Final = 2
#: The request id of everything that the server sends first.
PUSH_RID: Final = "0"


class Type(IntEnum):
    """The envelope's `t` (section "Messages"): up to 100 from the client, above from the server."""

    HELLO = 1
    REGISTER = 2
    PING = 3
    GQUEUE = 4
    LQUEUES = 5
    SUBSCRIBE = 6
    UNSUBSCRIBE = 7
    CREDIT = 8
    ADDQUEUE = 9
    STATUS = 10
    RMQUEUE = 11
    PAUSE = 12
    RESUME = 13
    ENQUEUE = 14
    JOB = 15
    RMJOB = 16
    LSJOB = 17
    QSTATS = 18
    ACK = 19
    DONE = 20
    FAIL = 21
    BEAT = 22
    GOODBYE = 23
    LOG = 24
    OK = 101
    ERR = 102
    HI = 103
    IDENT = 104
    PONG = 105
    QUEST = 106


#: A client's message with a higher type is a protocol violation.
LAST_CLIENT_TYPE: Final = 100


class Code(StrEnum):
    """The `code` of an ERR (section "Errors"): after the first three the connection is closed."""

    PROTOCOL_VIOLATION = "PROTOCOL_VIOLATION"
    CONNECTION_TIMEOUT = "CONNECTION_TIMEOUT"
    REGISTER_TIMEOUT = "REGISTER_TIMEOUT"
    QUEUE_NOT_FOUND = "QUEUE_NOT_FOUND"
    DUPLICATE_SUBSCRIPTION = "DUPLICATE_SUBSCRIPTION"
    SUBSCRIPTION_NOT_FOUND = "SUBSCRIPTION_NOT_FOUND"
    INVALID_CREDITS = "INVALID_CREDITS"
    SYSTEM_QUEUE_FORBIDDEN = "SYSTEM_QUEUE_FORBIDDEN"
    DUPLICATE_QUEUE = "DUPLICATE_QUEUE"
    INVALID_QUEUE_NAME = "INVALID_QUEUE_NAME"
    QUEUE_NOT_EMPTY = "QUEUE_NOT_EMPTY"
    QUEUE_ALREADY_PAUSED = "QUEUE_ALREADY_PAUSED"
    QUEUE_ALREADY_RUNNING = "QUEUE_ALREADY_RUNNING"
    INVALID_MAX_ATTEMPTS = "INVALID_MAX_ATTEMPTS"
    INVALID_RETRY_INTERVAL_MS = "INVALID_RETRY_INTERVAL_MS"
    INVALID_JOB_ID = "INVALID_JOB_ID"
    INVALID_JOB_PAYLOAD = "INVALID_JOB_PAYLOAD"
    JOB_NOT_FOUND = "JOB_NOT_FOUND"
    JOB_STATUS_NOT_REMOVABLE = "JOB_STATUS_NOT_REMOVABLE"
    INVALID_JOB_STATUS_FILTER = "INVALID_JOB_STATUS_FILTER"
    INVALID_PAGE_SIZE = "INVALID_PAGE_SIZE"
    INVALID_PAGE = "INVALID_PAGE"
    FORBIDDEN = "FORBIDDEN"
    QUEUE_FULL = "QUEUE_FULL"
    UNAVAILABLE = "UNAVAILABLE"
