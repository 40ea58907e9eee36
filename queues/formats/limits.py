"""Limits of a message that every way into the store has."""

from __future__ import annotations

from typing import Final

#: Bytes of a key.
MAX_KEY: Final = 1024
MAX_PRIORITY: Final = 100
MIN_PRIORITY: Final = -MAX_PRIORITY
#: Highest number of attempts that the store can count: it is PostgreSQL's smallint.
MAX_ATTEMPTS: Final = 32_767
#: Longest delay or time to live in seconds: 100 years.
MAX_DELAY: Final = 100 * 365 * 86_400.0
