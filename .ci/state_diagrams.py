#!/usr/bin/env python3
"""Draw the state machines of protocols and engine into their pages, from the transition tables in the code.

    .ci/state_diagrams.py            write the diagrams
    .ci/state_diagrams.py --check    fail if one of them is not up to date; writes nothing

A page says where a diagram goes, and of which table; everything between the two lines is replaced:

    <!-- states of wire.sspq.machine.TABLE -->
    <!-- end of states -->

A table has, for every state and event, one action or several, and the next state. Events that leave the state as it is
are not drawn.
"""

import argparse
import importlib
import re
import sys
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
PAGES: Final = ("docs/architecture.md", "docs/protocols/*.md")
PLACE: Final = re.compile(r"(<!-- states of (\S+) -->\n).*?(<!-- end of states -->)", re.DOTALL)
#: The name of the state that nothing follows.
FINAL: Final = "CLOSED"
#: Actions that are not worth a word.
NO_ACTION: Final = ("IGNORE", "NOTHING")


def drawn(page: str) -> str:
    """Return a page with all its diagrams drawn. Raises ImportError, AttributeError for a table that is not there."""
    return PLACE.sub(lambda place: place[1] + diagram(_table(place[2])) + place[3], page)


def _table(path: str) -> Mapping[Any, Mapping[Any, Any]]:
    module, _, name = path.rpartition(".")
    table: Mapping[Any, Mapping[Any, Any]] = getattr(importlib.import_module(module), name)
    return table


def diagram(table: Mapping[Any, Mapping[Any, Any]]) -> str:
    """Return the Mermaid diagram of a transition table, as a fenced block."""
    arrows: dict[tuple[Enum, Enum, str], list[str]] = {}
    for source, row in table.items():
        for event, (actions, target) in row.items():
            if source is not target:
                arrows.setdefault((source, target, _done(actions)), []).append(event.name)
    states = list(table)
    entered = {target for _, target, _ in arrows}
    lines = ["```mermaid", "stateDiagram-v2"]
    lines += [f"    [*] --> {state.name}" for state in [s for s in states if s not in entered] or states[:1]]
    for (source, target, done), events in arrows.items():
        lines.append(f"    {source.name} --> {target.name}: {', '.join(events)}{done}")
    lines += [f"    {state.name} --> [*]" for state in states if state.name == FINAL]
    return "\n".join([*lines, "```", ""])


def _done(actions: Enum | tuple[Enum, ...]) -> str:
    """Return an arrow's actions behind a slash; nothing if there are none."""
    several = actions if isinstance(actions, tuple) else (actions,)
    words = [action.name.lower().replace("_", " ") for action in several if action.name not in NO_ACTION]
    return f" / {', '.join(words)}" if words else ""


def main() -> int:
    parser = argparse.ArgumentParser(description="Draw the state machines into their pages.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a diagram is not up to date")
    check = parser.parse_args().check
    sys.path.insert(0, str(ROOT))
    stale = 0
    for path in sorted(path for pages in PAGES for path in ROOT.glob(pages)):
        text = path.read_text()
        if (new := drawn(text)) == text:
            continue
        stale += 1
        if check:
            print(f"{path.relative_to(ROOT)}: a diagram is not its table's: run `make generate`", file=sys.stderr)
        else:
            path.write_text(new)
            print(f"{path.relative_to(ROOT)} written")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
