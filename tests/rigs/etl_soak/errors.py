"""Errors that end a soak before its verdict."""

from queues.etl.errors import EtlError


class SoakBroken(EtlError):
    """The soak could not be finished."""
