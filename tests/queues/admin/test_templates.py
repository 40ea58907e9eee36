"""Templates: numbers for machines are never written as people of some language write them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from django.template import Context, Template
from django.test import override_settings
from django.utils import translation

from brokersite.environment import CHECKOUT
from queues.admin.charts import BarChart, Charts, Series, Stretch, TimeChart, Timeline

TEMPLATES = sorted(
    path for root in ("queues/templates", "hydra/templates", "templates") for path in (CHECKOUT / root).rglob("*.html")
)
TAG = re.compile(r"<[a-zA-Z](?:\{\{.*?\}\}|\{%.*?%\}|[^<>])*>", re.DOTALL)
ATTRIBUTE = re.compile(r'([\w-]+)="((?:\{\{.*?\}\}|\{%.*?%\}|[^"])*)"', re.DOTALL)
VALUE = re.compile(r"\{\{(.*?)\}\}")
UNLOCALIZED = re.compile(r"\{% localize off %\}.*?\{% endlocalize %\}", re.DOTALL)
#: Attributes for people's eyes and ears.
WORDS = {"title", "aria-label", "placeholder", "alt"}
#: Filters that leave a text.
TEXTS = ("|unlocalize", "|stringformat:", "|urlencode", "|slugify")
#: Values that are texts.
NAMES = {
    "action", "action_checkbox_name", "action_label", "address", "around", "button", "chart.id", "colour", "count",
    "dash", "field.auto_id", "field.name", "find", "first_page", "cl.first_page", "cl.next_page", "further", "history",
    "audit", "key", "name", "next_page", "one.page", "picture", "publish", "queue", "row.address", "row.page",
    "row.queue_page", "reasons_page", "section.name", "section.version", "source", "stage.mark", "subscriptions",
    "target", "value", "chart.words", "page.address", "until", "opts.app_label", "opts.model_name",
}  # fmt: skip


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_no_attribute_has_a_number_that_is_localized(path: Path) -> None:
    text = UNLOCALIZED.sub("", path.read_text())
    found = [
        f"{name}={value.strip()}"
        for tag in TAG.findall(text)
        for name, values in ATTRIBUTE.findall(tag)
        for value in VALUE.findall(values)
        if name not in WORDS and value.strip() not in NAMES and not any(one in value for one in TEXTS)
    ]
    assert not found


@pytest.mark.parametrize("language", ["de", "fr", "ar", "pt-br"])
def test_charts_are_drawn_with_numbers_that_browsers_read(language: str) -> None:
    series = [Series("in", [1234567.5, 0.25])]
    times = [1_700_000_000.5, 1_700_003_600.0]
    drawn_by_script = TimeChart("t", "T", series, "count", times, times[0], times[1])
    charts = Charts([drawn_by_script, BarChart("b", "B", series, "rate", ["a", "b"])], "/somewhere/?n=1000", live=True)
    stretch = Stretch("n", 0, times[0] + 1234.5, times[0] + 2345.6, "it led")
    timeline = Timeline("n", "N", "words", ["led", "held"], [stretch], times[0], times[1], [], [])
    with override_settings(USE_THOUSAND_SEPARATOR=True, USE_I18N=True), translation.override(language):
        assert Template("{{ n }}").render(Context({"n": 1234.5})) != "1234.5", "it localizes"
        drawn = f"{charts}{timeline}"
        figures = charts.as_json()["charts"]["t"]
    for name in ("x", "y", "width", "height"):
        values = re.findall(rf'\s{name}="([^"]*)"', drawn)
        assert values
        for value in values:
            float(value.removesuffix("%"))
    [data] = re.findall(r'"plot".*?<script[^>]*>(.*?)</script>', drawn, re.DOTALL)
    assert json.loads(data)["times"] == figures["times"] == times
    assert json.loads(data)["values"] == figures["values"] == [[1234567.5, 0.25]]
    assert figures["rows"][0][1] in drawn
    assert figures["rows"][0][1] != "1234567.5", "people of this language do not write it so"
