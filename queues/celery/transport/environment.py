"""Requirements of the transport: where it can run."""

from __future__ import annotations

from kombu.utils.compat import _detect_environment


def refuse_green_threads() -> None:
    """Raise RuntimeError where threads are not the system's: the engine's could not run beside what blocks."""
    environment = _detect_environment()
    if environment != "default":
        raise RuntimeError(
            f"Fivewire's transport does not run under {environment}; use Celery's prefork, threads or solo pool."
        )
