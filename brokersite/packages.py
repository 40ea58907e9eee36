"""Packages of this distribution in whose place another distribution's package of the same name stands.

`hydra`, `peers`, `queues` and `wire` are common names: hydra-core on PyPI installs a `hydra`, too. In one environment
the later installation overwrites files of the earlier one.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Final

#: The directory that holds the packages: the checkout, or site-packages.
HOME: Final = Path(__file__).resolve().parents[1]

NAMES: Final = ("hydra", "peers", "queues", "wire")

#: The first word of each package's docstring.
MARK: Final = '"""Fivewire'

ADVICE: Final = "Install Fivewire into a virtual environment of its own; docs/operations.md has more."


def foreign_package() -> str | None:
    """A sentence about a package that is not this distribution's; None when all are. Imports none of them."""
    for name in NAMES:
        ours = HOME / name / "__init__.py"
        spec = find_spec(name)
        found = Path(spec.origin) if spec is not None and spec.origin else None
        if found is None:
            return f"The package {name} of Fivewire is missing: {ours} does not exist. {ADVICE}"
        if found.resolve() != ours:
            return f"The package {name} is {found.parent}, in place of Fivewire's {ours.parent}. {ADVICE}"
        if not ours.read_text(encoding="utf-8").startswith(MARK):
            return f"The package {name} in {ours.parent} is another distribution's, in place of Fivewire's. {ADVICE}"
    return None


def sharing_distributions() -> Iterator[tuple[str, str]]:
    """Other distributions that have installed a package of these names beside ours, and the names."""
    for distribution in distributions():
        if Path(str(distribution.locate_file("."))).resolve() != HOME:
            continue
        files = "\n" + (distribution.read_text("RECORD") or "")
        shared = [name for name in NAMES if f"\n{name}/__init__.py," in files]
        if shared and distribution.metadata["Name"] != "fivewire":  # a name is parsed out of much, so for few
            yield from ((distribution.metadata["Name"], name) for name in shared)
