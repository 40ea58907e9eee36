"""The page of all settings, made from their declarations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from brokersite.options import Option, Options

HEAD = """\
# Settings

Every setting is an environment variable, read once when a process starts. A wrong value is refused then,
with its name, its value and what would be right. An empty variable counts as unset. In Django code each is
a setting of the same name, such as `settings.BROKER_PREFETCH`.

This page is written by `manage.py settingsdoc`.
"""


def page(options: type[Options]) -> str:
    """The Markdown page with a table for each section of ``options``."""
    return HEAD + "".join(_section(heading, own) for heading, own in options.sections())


def _section(heading: str, options: list[Option[Any]]) -> str:
    return f"\n## {heading}\n\n" + "".join(_lines(options))


def _lines(options: list[Option[Any]]) -> Iterator[str]:
    yield "| Name | Default | Meaning | Value |\n"
    yield "|---|---|---|---|\n"
    for option in options:
        yield f"| `{option.name}` | {_default(option)} | {option.help} | {option.expected} |\n"


def _default(option: Option[Any]) -> str:
    if option.default_text is None:
        return f"`{option.default:g}`" if isinstance(option.default, float) else f"`{option.default}`"
    return option.default_text
