"""Waiting for the end of processes."""

from __future__ import annotations

import psutil


def has_ended(process: psutil.Process) -> bool:
    """Whether it runs no more; a zombie does not, whoever is to take note of its end."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # between the two looks
        return True
