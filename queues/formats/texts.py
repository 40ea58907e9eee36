"""Texts and JSON that PostgreSQL can hold: no NUL, no half of a surrogate pair, neither NaN nor infinity."""

from __future__ import annotations

import json
import re
from typing import Any

_REFUSED = re.compile("[\0\ud800-\udfff]")
#: A NUL in JSON, as its escape alone: a control character is always escaped there.
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
#: Stands where a part of a text was left out.
GAP = " […] "
MAX_SHOWN = 100
#: Levels of lists and objects in a column of JSON.
DEEPEST = 500


def is_storable(text: str) -> bool:
    """Whether a text can be stored as it is."""
    return _REFUSED.search(text) is None


def storable(text: str, longest: int | None = None) -> str:
    """A text for people, with U+FFFD for what cannot be stored, and without its middle if it is longer than `longest`
    characters."""
    if longest is not None and len(text) > longest:
        half = (longest - len(GAP)) // 2
        text = text[:half] + GAP + text[-half:]
    return _REFUSED.sub("\N{REPLACEMENT CHARACTER}", text)


def shown(value: object) -> str:
    """A value as an error shows it: its first characters."""
    try:
        text = repr(value)
    except Exception:  # a whole number of 5,000 digits has none
        return f"one of type {type(value).__name__}"
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def depth(value: Any) -> int:
    """The depth of nested lists and objects."""
    level, levels = [value], 0
    while level := [one for one in level if isinstance(one, dict | list | tuple)]:
        levels += 1
        level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one)]
    return levels


def json_text(value: Any) -> str:
    """A value as JSON that a column takes. Raises ValueError or TypeError: the text says why not."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    if _NUL.search(text):
        raise ValueError("it has a NUL character, which cannot be stored")
    if not is_storable(text):
        raise ValueError("it has half of a surrogate pair, which cannot be stored")
    if text.count("[") + text.count("{") > DEEPEST and depth(value) > DEEPEST:
        raise ValueError(f"it is nested more than {DEEPEST} levels deep")
    return text
