"""The pages render as they are meant to: line lengths, tables, links and their anchors."""

from __future__ import annotations

import re
from codeop import CommandCompiler
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokersite.environment import CHECKOUT

PAGES = [CHECKOUT / "README.md", CHECKOUT / "CHANGELOG.md", *sorted((CHECKOUT / "docs").rglob("*.md"))]
MAX_LINE = 120
#: Packages with templates, scripts and styles, and the endings of their names.
PACKAGES, SUFFIXES = ("queues", "templates"), {".html", ".css", ".js"}
#: The row below a table's head.
RULE = re.compile(r"\|(\s*:?-+:?\s*\|)+")
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE_SPAN = re.compile(r"`[^`]*`")
FILE = re.compile(r"# \S+\.py\n")
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))


def prose(page: Path) -> Iterator[tuple[int, str]]:
    """The lines of a page by their numbers, without those of code blocks."""
    code = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            code = not code
        elif not code and not line.startswith("    "):
            yield number, line


def tables(page: Path) -> Iterator[list[tuple[int, str]]]:
    """The tables of a page as lists of rows, each with the line before the table as its first."""
    table: list[tuple[int, str]] = []
    before = (0, "")
    for number, line in prose(page):
        if line.startswith("|"):
            table = table or [before]
            table.append((number, line))
        elif table:
            yield table
            table = []
        before = (number, line)
    if table:
        yield table


def cells(row: str) -> int:
    return len(re.findall(r"(?<!\\)\|", row)) - 1


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    seen: Counter[str] = Counter()
    made = set()
    for _, line in prose(page):
        if line.startswith("#"):
            title = line.lstrip("#").strip().replace("`", "").lower()
            slug = re.sub(r"[^\w\- ]", "", title).replace(" ", "-")
            made.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
            seen[slug] += 1
    return made


@pages
def test_no_line_of_prose_is_longer_than_120_characters(page: Path) -> None:
    long = [number for number, line in prose(page) if len(line) > MAX_LINE and not line.startswith("|")]
    assert not long


def test_no_line_of_a_template_script_style_or_configuration_is_longer_either() -> None:
    found = (path for package in PACKAGES for path in (CHECKOUT / package).rglob("*")
             if path.suffix in SUFFIXES and "vendor" not in path.parts)  # fmt: skip
    long = [
        (str(path.relative_to(CHECKOUT)), number)
        for path in [*found, *CHECKOUT.glob("*.toml"), *CHECKOUT.glob("*.yaml")]
        for number, line in enumerate(path.read_text().splitlines(), 1) if len(line) > MAX_LINE
    ]  # fmt: skip
    assert not long


@pages
def test_every_table_is_read_as_one(page: Path) -> None:
    wrong = []
    for (_, before), (number, head), *rows in tables(page):
        if before.strip() or not rows or not RULE.fullmatch(rows[0][1].strip()):
            wrong.append(number)
        wrong += [number for number, row in rows if cells(row) != cells(head) or not row.rstrip().endswith("|")]
    assert not wrong


@pages
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    broken = []
    for number, line in prose(page):
        for target in LINK.findall(CODE_SPAN.sub("", line)):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            file = (page.parent / name).resolve() if name else page
            if not file.exists() or (anchor and anchor not in anchors(file)):
                broken.append((number, target))
    assert not broken


@pages
def test_every_python_block_can_be_pasted_into_an_interpreter(page: Path) -> None:
    """The interpreters of Python 3.11 and 3.12 read line by line: only an empty line ends a compound statement. A block
    that begins with the name of a file is that file."""
    for block in PYTHON.findall(page.read_text()):
        if FILE.match(block):
            continue
        read = CommandCompiler()
        statement = ""
        for line in [*block.splitlines(), ""]:
            statement += line
            statement = statement + "\n" if read(statement) is None else ""
        assert not statement
