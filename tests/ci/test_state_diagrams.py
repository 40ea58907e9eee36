"""The diagrams of the protocols' pages: what is drawn of a table, and that a page that has grown old is found."""

import importlib.util
import shutil
import subprocess
import sys
from enum import Enum, auto
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parent.parent.parent / ".ci" / "state_diagrams.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("state_diagrams", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tool = load()


class State(Enum):
    IDLE = auto()
    WAITING = auto()
    CLOSED = auto()


class Event(Enum):
    ASKED = auto()
    ASKED_TWICE = auto()
    TOLD = auto()
    ENDED = auto()


class Action(Enum):
    IGNORE = auto()
    LOOK_UP = auto()
    ANSWER = auto()


TABLE = {
    State.IDLE: {
        Event.ASKED: (Action.LOOK_UP, State.WAITING),
        Event.ASKED_TWICE: ((Action.LOOK_UP, Action.ANSWER), State.WAITING),
        Event.TOLD: (Action.LOOK_UP, State.WAITING),
        Event.ENDED: (Action.IGNORE, State.CLOSED),
    },
    State.WAITING: {Event.ASKED: (Action.ANSWER, State.WAITING)},
    State.CLOSED: {},
}


def test_a_table_is_drawn_with_its_changes_of_state_alone() -> None:
    assert tool.diagram(TABLE).splitlines() == [
        "```mermaid",
        "stateDiagram-v2",
        "    [*] --> IDLE",
        "    IDLE --> WAITING: ASKED, TOLD / look up",
        "    IDLE --> WAITING: ASKED_TWICE / look up, answer",
        "    IDLE --> CLOSED: ENDED",
        "    CLOSED --> [*]",
        "```",
    ]


def test_a_machine_that_is_entered_again_begins_in_its_first_state() -> None:
    back = {State.IDLE: {Event.ASKED: ((), State.WAITING)}, State.WAITING: {Event.ENDED: ((), State.IDLE)}}
    assert [line for line in tool.diagram(back).splitlines() if "[*]" in line] == ["    [*] --> IDLE"]


@pytest.mark.parametrize("name", ["docs/architecture.md", "docs/protocols/page.md"])
def test_a_page_that_no_longer_shows_the_table_fails_the_check_until_it_is_drawn_anew(
    tmp_path: Path, name: str
) -> None:
    shutil.copytree(TOOL.parent, tmp_path / ".ci")
    (tmp_path / "machine.py").write_text(
        "from enum import Enum\n"
        "State, Event = Enum('State', 'OPEN CLOSED'), Enum('Event', 'ENDED')\n"
        "TABLE = {State.OPEN: {Event.ENDED: ((), State.CLOSED)}, State.CLOSED: {}}\n"
    )
    page = tmp_path / name
    page.parent.mkdir(parents=True)
    page.write_text("Before.\n\n<!-- states of machine.TABLE -->\nold\n<!-- end of states -->\n\nAfter.\n")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command: list[str | Path] = [sys.executable, tmp_path / ".ci" / TOOL.name, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    checked = run("--check")
    assert checked.returncode == 1
    assert name in checked.stderr
    assert "old" in page.read_text()
    assert run().returncode == 0
    assert "old" not in page.read_text()
    assert "    OPEN --> CLOSED: ENDED\n" in page.read_text()
    assert page.read_text().startswith("Before.\n\n<!-- states of machine.TABLE -->\n```mermaid\n")
    assert page.read_text().endswith("```\n<!-- end of states -->\n\nAfter.\n")
    assert run("--check").returncode == 0
