"""The cause of a failure in Spark. Java has to be alive to give the text."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.core.context import SparkContext

from queues.etl.errors import EtlError, JobDied, SparkFailed


@contextmanager
def failures_named() -> Iterator[None]:
    """Log a failure in the context with its trace, and raise it with its cause. Raises EtlError."""
    try:
        yield
    except Exception as error:
        gateway: Any = SparkContext._gateway
        if isinstance(error, Py4JError | OSError) and gateway is not None and gateway.proc.poll() is not None:
            raise JobDied(f"Java has ended with status {gateway.proc.returncode}") from error
        traceback.print_exc()
        if isinstance(error, EtlError):
            raise
        raise SparkFailed(cause(error)) from None


def cause(error: BaseException) -> str:
    """The first cause in one line."""
    java: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    while java is not None and java.getCause() is not None:
        java = java.getCause()
    text = f"{type(error).__name__}: {error}" if java is None else str(java.toString())
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if "Traceback" in lines[0]:  # of an executor's Python
        return lines[-1]
    name, colon, rest = lines[0].partition(": ")
    return f"{name.rpartition('.')[2]}{colon}{rest}"
