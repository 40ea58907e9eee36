"""docs/grafana.json: every metric of the dashboard is one that a process has."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from brokersite.environment import CHECKOUT
from queues.monitoring.metrics import ENGINE_COUNTERS

DASHBOARD = CHECKOUT / "docs" / "grafana.json"
PACKAGES = ("queues", "wire", "peers")


@pytest.fixture(scope="module")
def source() -> str:
    """All source that declares metrics."""
    return "".join(path.read_text() for package in PACKAGES for path in Path(CHECKOUT, package).rglob("*metrics.py"))


def test_the_dashboard_asks_for_metrics_that_there_are(source: str) -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    asked = set(re.findall(r"fivewire_\w+", " ".join(expressions)))
    assert len(asked) > 15
    for name in asked:
        declared = name.removesuffix("_total")
        assert f'"{declared}"' in source or declared.removeprefix("fivewire_") in ENGINE_COUNTERS, name


def test_its_panels_have_places_and_titles_of_their_own() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels)
    assert len({panel["title"] for panel in panels}) == len({panel["id"] for panel in panels}) == len(panels)
