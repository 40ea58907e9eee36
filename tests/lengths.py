"""Tests of several lengths: `make test` runs the short form, `make test-all` only the long one, which shows the same
and more, and `make soak` the longest."""

from __future__ import annotations

from typing import Any

import pytest


def lengths(*, short: Any, long: Any, soak: Any = None) -> list[Any]:
    """The parameters of each form; tuples for several names."""
    forms = ((short, pytest.mark.short), (long, pytest.mark.long), (soak, pytest.mark.soak))
    return [
        pytest.param(*(given if isinstance(given, tuple) else (given,)), marks=mark)
        for given, mark in forms
        if given is not None
    ]
