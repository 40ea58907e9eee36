"""The page of all settings, made from their declarations."""

from __future__ import annotations

import textwrap
from typing import Any

from queues.config.options import Option, Options

#: Characters of a line of the page.
WIDTH = 118

HEAD = """\
# Settings

Every setting is an environment variable, read once when a process starts. A wrong value is refused then,
with its name, its value and what would be right. An empty variable counts as unset. In Django code each is
a setting of the same name, such as `settings.BROKER_PREFETCH`.

This page is written by `manage.py settingsdoc`.
"""


def page(options: type[Options]) -> str:
    """The Markdown page with a list for each section of ``options``."""
    return HEAD + "".join(_section(heading, own) for heading, own in options.sections())


def _section(heading: str, options: list[Option[Any]]) -> str:
    return f"\n## {heading}\n\n" + "\n".join(map(_entry, options)) + "\n"


def _entry(option: Option[Any]) -> str:
    text = f"- **`{option.name}`**, default {_default(option) or 'empty'}. {option.help} *Value: {option.expected}.*"
    return "\n".join(textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False))


def _default(option: Option[Any]) -> str:
    if option.default_text is None:
        return f"`{option.default:g}`" if isinstance(option.default, float) else f"`{option.default}`"
    return option.default_text
