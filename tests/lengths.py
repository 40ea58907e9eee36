"""Tests of two lengths: `make test` runs the short form, and `make test-all` only the long one, which shows the same
and more."""

from __future__ import annotations

from typing import Any

import pytest


def short_or_long(short: Any, long: Any) -> list[Any]:
    """The parameters of both forms; tuples for several names."""
    forms = ((short, pytest.mark.short), (long, pytest.mark.long))
    return [pytest.param(*(given if isinstance(given, tuple) else (given,)), marks=mark) for given, mark in forms]
