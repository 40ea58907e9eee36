"""The errors of a benchmark."""


class BenchError(Exception):
    """The measurement cannot be made; the message says why, and how to go on."""


class MeasurementOverdue(BenchError):
    """The measurement took too long, and was broken off."""
