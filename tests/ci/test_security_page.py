"""docs/security.md: each promise of the threat model names tests that hold it, and these exist."""

from __future__ import annotations

import re

import pytest

from brokersite.environment import CHECKOUT

PAGE = CHECKOUT / "docs" / "security.md"
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
ROWS = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and not line.startswith("| threat ")]


def test_the_page_has_a_table() -> None:
    assert len(ROWS) > 15


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip()[:60])
def test_a_threat_names_tests_that_exist(row: str) -> None:
    named = TEST.findall(row)
    assert named, row
    missing = [
        f"{path}::{name}" for path, name in named
        if not re.search(rf"^\s*(async )?def {name}\(", (CHECKOUT / path).read_text(), re.MULTILINE)
    ]  # fmt: skip
    assert not missing
