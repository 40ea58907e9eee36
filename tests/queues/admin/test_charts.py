"""Charts: what is drawn where, and how figures are written."""

from __future__ import annotations

import pytest

from queues.admin.charts import HEIGHT, Series, bars, columns, format_number, format_seconds, lines, scale


@pytest.mark.parametrize(
    ("highest", "levels"),
    [
        (0, [0, 1]), (1, [0, 0.25, 0.5, 0.75, 1]), (7, [0, 2, 4, 6, 8]), (100, [0, 25, 50, 75, 100]),
        (101, [0, 50, 100, 150]), (8_000_001, [0, 2.5e6, 5e6, 7.5e6, 1e7]), (0.003, [0, 0.001, 0.002, 0.003]),
    ],
)  # fmt: skip
def test_levels_are_round_and_reach_the_highest_figure(highest: float, levels: list[float]) -> None:
    assert scale(highest) == pytest.approx(levels)


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


def test_columns_stand_on_each_other_and_what_is_nothing_is_not_drawn() -> None:
    chart = columns("c", "Messages", ["a", "b"], [Series("good", [3, 0]), Series("bad", [1, 0]), Series("odd", [0, 0])])
    below, above = chart.marks
    assert (below.words, above.words) == ("a: 3 good", "a: 1 bad")
    assert above.y + above.height == pytest.approx(below.y)
    assert below.height == pytest.approx(3 * above.height)
    assert [label for label, *_ in chart.series] == ["good", "bad"]
    assert chart.rows == [["a", "3", "1", "0"], ["b", "0", "0", "0"]]


def test_a_line_is_broken_where_there_are_no_figures() -> None:
    chart = lines("l", "Latency", list("abcde"), [Series("p50", [1, 2, None, 4, None])])
    assert [len(line.points.split()) for line in chart.lines] == [2, 2]
    heights = [float(point.split(",")[1]) for point in chart.lines[0].points.split()]
    assert HEIGHT > heights[0] > heights[1] > 0
    assert chart.words == "Latency. p50 is highest at d with 4 s."
    assert chart.rows[2] == ["c", "-"]


def test_bars_are_as_long_as_their_figures_and_long_names_are_cut() -> None:
    chart = bars("b", "Queues", ["x" * 50, "y"], [Series("n", [20_000, 10_000])])
    assert chart.marks[0].width == pytest.approx(2 * chart.marks[1].width, rel=0.01)
    assert [label.text for label in chart.labels] == ["x" * 25 + "…", "20 k", "y", "10 k"]
    assert chart.rows[0] == ["x" * 50, "20,000"]


def test_a_chart_of_nothing_says_so() -> None:
    chart = columns("c", "Messages", ["a"], [Series("good", [0])])
    assert chart.words == "Messages. There are no figures."
    assert "<svg" not in str(chart)


def test_names_are_text_wherever_they_stand() -> None:
    html = str(bars("b", "Queues", ["<b>&"], [Series("n", [1])]))
    assert "<b>" not in html
    assert html.count("&lt;b&gt;&amp;") == 4  # in words, on the bar, beside it, in the table
