"""Charts: their tables, their figures for machines, and how figures are written."""

from __future__ import annotations

import json
import re

import pytest

from queues.admin.charts import (
    BarChart,
    Charts,
    Series,
    Stretch,
    TimeChart,
    Timeline,
    format_number,
    format_seconds,
    format_size,
    sparkline,
)

#: Noon, and the two minutes after it.
TIMES = [1_780_056_000.0, 1_780_056_060.0, 1_780_056_120.0]


def time_chart(*series: Series, unit: str = "seconds") -> TimeChart:
    return TimeChart("l", "Latency", series, unit, TIMES, TIMES[0] - 60, TIMES[-1])


@pytest.mark.parametrize(
    ("value", "words"),
    [(0, "0"), (9_999, "9,999"), (12_340, "12.3 k"), (5e6, "5 M"), (1.25e9, "1.2 G"), (2.5, "2.5")],
)
def test_how_a_count_is_written(value: float, words: str) -> None:
    assert format_number(value) == words


@pytest.mark.parametrize(
    ("value", "words"), [(0.0004, "0.4 ms"), (0.25, "250 ms"), (1.5, "1.5 s"), (90, "1.5 min"), (7200, "2 h")]
)
def test_how_a_time_is_written(value: float, words: str) -> None:
    assert format_seconds(value) == words


@pytest.mark.parametrize(("value", "words"), [(12, "12 bytes"), (512_000, "512 kB"), (1.34e9, "1.34 GB")])
def test_how_a_size_is_written(value: float, words: str) -> None:
    assert format_size(value) == words


def test_a_chart_has_its_figures_in_words_in_a_table_and_for_machines() -> None:
    chart = time_chart(Series("p50", [1, None, 4]))
    assert chart.words == "Latency. p50 is highest at 2026-05-29 12:02 with 4 s."
    assert chart.rows == [["2026-05-29 12:00", "1 s"], ["2026-05-29 12:01", "-"], ["2026-05-29 12:02", "4 s"]]
    assert chart.data["values"] == [[1, None, 4]]
    assert list(chart.csv())[:3] == [["time", "p50"], ["2026-05-29T12:00:00Z", 1], ["2026-05-29T12:01:00Z", ""]]


def test_counts_in_a_table_are_exact() -> None:
    assert time_chart(Series("n", [1_234_567, 0, None]), unit="count").rows[0][1] == "1,234,567"


def test_bars_are_as_long_as_their_figures_and_what_is_nothing_is_left_out() -> None:
    series = [Series("good", [20_000, 10_000]), Series("odd", [0, 0]), Series("bad", [0, 10_000])]
    chart = BarChart("b", "Queues", series, "count", ["x", "y"])
    (_, cells, (long,)), (_, _, (good, bad)) = chart.bars
    assert cells == ["20,000", "0"]
    assert (long.width, good.width, bad.width, bad.x) == (100, 50, 50, 50)
    assert (good.colour, bad.colour) == (1, 3), "a series keeps its colour"
    assert list(chart.csv())[1] == ["x", 20_000, 0, 0]


def test_a_chart_of_nothing_says_so() -> None:
    assert time_chart(Series("good", [0, None, 0])).words == "Latency. There are no figures."
    for chart in (time_chart(Series("good", [0, None, 0])), BarChart("b", "Queues", [], "count", [])):
        drawn = str(Charts([chart], address="/x?"))
        assert "There are no figures." in drawn
        assert "format=csv" not in drawn


def test_stretches_of_time_are_cut_at_the_ends_of_a_timeline() -> None:
    stretches = [Stretch("n", 1, 0, 150, "held"), Stretch("n", 0, 150, 900, "led")]
    [(name, (held, led))] = Timeline("t", "T", "w", ["led", "held"], stretches, 100, 200, [], []).lines
    assert name == "n"
    assert (held.x, held.width, held.y, held.height) == (0, 50, 50, 50)
    assert (led.x, led.width, led.y) == (50, 50, 0)


def test_the_line_behind_a_name_begins_at_nothing_and_says_how_high_it_goes() -> None:
    drawn = sparkline("Waiting", [0, 12_000, None, 6_000])
    assert re.findall(r"points=\"(.*?)\"", drawn) == ["11.25,22 33.75,2", "75.75,12 81.75,12"]
    assert re.sub(r"<[^>]+>", "", drawn).strip() == "12 k"
    assert not sparkline("Waiting", [None])


def test_names_are_text_wherever_they_stand() -> None:
    name = "</script><b>&"
    drawn = str(
        Charts([BarChart("b", "Q", [Series(name, [1])], "count", [name]), time_chart(Series(name, [1, 2, 3]))])
    )
    assert "<b>" not in drawn
    assert json.loads(re.findall(r"<script[^>]*>(.*?)</script>", drawn)[0]) == {"zone": "UTC", "events": []}
