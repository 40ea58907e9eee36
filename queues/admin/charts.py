"""Charts as inline SVG, drawn here: columns by the hour, lines by the hour, bars by name. No request, no database.

Each says in words what it shows and has its exact figures in a table beside it; its colours, and the patterns of its
lines, are told apart by people with any colour vision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.template.loader import render_to_string
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

WIDTH, HEIGHT = 720, 220
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 12, 28
#: Of the line behind a queue's name.
SPARK_WIDTH, SPARK_HEIGHT = 90, 24
#: Of a bar with a name; names stand left of bars.
BAR, GAP, NAMES = 18, 8, 200
#: Lines across the chart, and moments named below it, at most.
TICKS, MOMENTS = 4, 8
#: Okabe's and Ito's colours, and the patterns of lines in them.
COLOURS = ("#0072b2", "#e69f00", "#d55e00", "#009e73", "#cc79a7", "#56b4e9")
DASHES = ("", "6 3", "2 3", "8 3 2 3", "1 2", "10 4")
MAX_NAME = 26

Format = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Frame:
    """The size of a chart with axes, and how many moments are named below it."""

    width: int
    height: int
    moments: int


LARGE, SMALL = Frame(WIDTH, HEIGHT, MOMENTS), Frame(400, 170, 4)


@dataclass(frozen=True, slots=True)
class Series:
    """Figures of one kind, one for each place; None: there is none."""

    label: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Mark:
    """A rectangle and what it stands for."""

    x: float
    y: float
    width: float
    height: float
    colour: str
    words: str


@dataclass(frozen=True, slots=True)
class ChartLine:
    """A line through the figures of a series, in pieces where there are none."""

    points: str
    colour: str
    dash: str


@dataclass(frozen=True, slots=True)
class Label:
    """A word at a place."""

    x: float
    y: float
    text: str
    anchor: str = "middle"


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart for the template; `rows` is the table beside it."""

    id: str
    title: str
    words: str
    height: float
    series: list[tuple[str, str, str]]
    heads: list[str]
    rows: list[list[str]]
    marks: list[Mark] = field(default_factory=list)
    lines: list[ChartLine] = field(default_factory=list)
    levels: list[float] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)
    left: float = LEFT
    width: float = WIDTH

    @property
    def right(self) -> float:
        return self.width - RIGHT

    def __html__(self) -> SafeString:
        return render_to_string("admin/queues/chart.html", {"chart": self})

    __str__ = __html__


def format_number(value: float) -> str:
    """A count as people write it: 1,250 or 3.2 M."""
    for size, sign in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if value >= size:
            return f"{value / (1000 if sign == ' k' else size):,.1f}".rstrip("0").rstrip(".") + sign
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def format_rate(value: float) -> str:
    """Messages a second."""
    return f"{format_number(value)}/s" if value >= 0.1 or not value else "under 0.1/s"


def format_size(value: float) -> str:
    """Bytes: 512 kB, 1.3 GB."""
    for unit, sign in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= unit:
            return f"{value / unit:.3g} {sign}"
    return f"{value:.0f} bytes"


def format_seconds(value: float) -> str:
    """A time: 4 ms, 1.5 s, 3 min, 2 h."""
    for size, sign in ((3600.0, "h"), (60.0, "min"), (1.0, "s")):
        if value >= size:
            return f"{value / size:.3g} {sign}"
    return f"{value * 1000:.3g} ms"


def columns(
    id: str, title: str, places: Sequence[str], series: Sequence[Series], form: Format = format_number
) -> Chart:
    """A column for each place, the series on top of each other."""
    shown = _used(series)
    totals = [sum(one.values[n] or 0 for one in series) for n in range(len(places))]
    levels = scale(max(totals, default=0))
    step = (WIDTH - LEFT - RIGHT) / max(1, len(places))
    marks = []
    for n, place in enumerate(places):
        below = 0.0
        for label, colour, _, values in shown:
            if value := values[n]:
                top, bottom = _height(below + value, levels), _height(below, levels)
                words = f"{place}: {form(value)} {label}"
                marks.append(Mark(round(LEFT + n * step, 2), top, _inner(step), round(bottom - top, 2), colour, words))
                below += value
    return _chart(
        id, title, places, series, form, HEIGHT, marks=marks,
        levels=[_height(level, levels) for level in levels], labels=_axes(places, levels, step, form),
    )  # fmt: skip


def lines(
    id: str, title: str, places: Sequence[str], series: Sequence[Series], form: Format = format_seconds,
    frame: Frame = LARGE,
) -> Chart:
    """A line for each series."""
    shown = _used(series)
    levels = scale(max((value for one in series for value in one.values if value is not None), default=0))
    step = (frame.width - LEFT - RIGHT) / max(1, len(places))
    drawn = [
        ChartLine(piece, colour, dash)
        for _, colour, dash, values in shown
        for piece in _pieces([None if value is None else _height(value, levels, frame) for value in values], step)
    ]
    return _chart(
        id, title, places, series, form, frame.height, lines=drawn, width=frame.width,
        levels=[_height(level, levels, frame) for level in levels], labels=_axes(places, levels, step, form, frame),
    )  # fmt: skip


def bars(id: str, title: str, names: Sequence[str], series: Sequence[Series], form: Format = format_number) -> Chart:
    """A bar for each name, the series behind each other."""
    shown = _used(series)
    totals = [sum(one.values[n] or 0 for one in series) for n in range(len(names))]
    unit = (WIDTH - NAMES - RIGHT - LEFT) / (max(totals, default=0) or 1)
    marks, labels = [], []
    for n, name in enumerate(names):
        x, y = float(NAMES), n * (BAR + GAP) + GAP
        for label, colour, _, values in shown:
            if value := values[n]:
                words = f"{name}: {form(value)} {label}"
                marks.append(Mark(round(x, 2), y, round(value * unit, 2), BAR, colour, words))
                x += value * unit
        labels.append(Label(NAMES - 8, y + BAR - 5, _short(name), "end"))
        labels.append(Label(round(x + 6, 2), y + BAR - 5, form(totals[n]), "start"))
    height = len(names) * (BAR + GAP) + GAP
    return _chart(id, title, names, series, form, height, marks=marks, labels=labels, left=NAMES)


def _chart(
    id: str, title: str, places: Sequence[str], series: Sequence[Series], form: Format, height: float, **drawn: Any
) -> Chart:
    """A chart with its words, legend and table."""
    legend, heads = [one[:3] for one in _used(series)], ["", *(one.label for one in series)]
    words, rows = _words(title, places, series, form), _table(places, series, form)
    return Chart(id, title, words, height, legend, heads, rows, **drawn)


@dataclass(frozen=True, slots=True)
class Stretch:
    """A time on a line of a timeline: which line, which kind, from and until (Unix times), and what it stands for."""

    line: str
    kind: int
    start: float
    end: float
    words: str


def timeline(
    id: str, title: str, words: str, kinds: Sequence[str], stretches: Sequence[Stretch], moments: Sequence[float],
    form: Format, heads: list[str], rows: list[list[str]],
) -> Chart:  # fmt: skip
    """Stretches of time by line, a narrow bar for each kind; `moments` are named below, the first and the last are the
    ends of the chart."""
    lines = list(dict.fromkeys(one.line for one in stretches))
    bar, begin = BAR / max(1, len(kinds)), moments[0]
    unit = (WIDTH - NAMES - RIGHT) / max(moments[-1] - begin, 1e-9)

    def place(moment: float) -> float:
        return round(NAMES + (min(max(moment, begin), moments[-1]) - begin) * unit, 2)

    marks = []
    for one in stretches:
        y = GAP + lines.index(one.line) * (BAR + GAP) + one.kind * bar
        width = max(place(one.end) - place(one.start), 1.0)
        marks.append(Mark(place(one.start), round(y, 2), round(width, 2), round(bar, 2), COLOURS[one.kind], one.words))
    foot = GAP + len(lines) * (BAR + GAP)
    labels = [Label(NAMES - 8, GAP + n * (BAR + GAP) + BAR - 5, _short(name), "end") for n, name in enumerate(lines)]
    labels += [Label(place(moment), foot + 14, form(moment)) for moment in moments[1:-1]]
    legend = [(kind, colour, "") for kind, colour in zip(kinds, COLOURS, strict=False)]
    return Chart(
        id, title, words, foot + 22, legend if stretches else [], heads, rows, marks=marks, labels=labels, left=NAMES
    )


def _short(name: str) -> str:
    """A name that fits beside a bar."""
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…"


def sparkline(words: str, values: Sequence[float | None]) -> SafeString:
    """A line without axes; `words` say what it shows. Nothing for figures that are all missing."""
    highest = max((value for value in values if value is not None), default=None)
    if highest is None:
        return SafeString("")
    step, room = SPARK_WIDTH / max(1, len(values)), SPARK_HEIGHT - 4
    heights = [None if one is None else round(SPARK_HEIGHT - 2 - one / (highest or 1) * room, 1) for one in values]
    return format_html(
        '<svg class="spark" viewBox="0 0 {} {}" width="{}" height="{}" role="img" aria-label="{}">{}</svg>',
        SPARK_WIDTH, SPARK_HEIGHT, SPARK_WIDTH, SPARK_HEIGHT, f"{words}, at most {format_number(highest)}",
        format_html_join(
            "", '<polyline points="{}" fill="none" stroke="{}" stroke-width="1.5"/>',
            ((piece, COLOURS[0]) for piece in _pieces(heights, step, 0)),
        ),
    )  # fmt: skip


def scale(highest: float) -> list[float]:
    """Round levels from 0 to one that is as high as the highest figure, five at most."""
    if not highest > 0:
        return [0.0, 1.0]
    rough = highest / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * (1 - 1e-9))
    return [n * step for n in range(math.ceil(highest / step - 1e-9) + 1)]


def _used(series: Sequence[Series]) -> list[tuple[str, str, str, Sequence[float | None]]]:
    """The series that have any figure, with colour and pattern; these do not depend on what others have."""
    dressed = zip(series, COLOURS, DASHES, strict=False)
    return [(one.label, colour, dash, one.values) for one, colour, dash in dressed if any(one.values)]


def _height(value: float, levels: Sequence[float], frame: Frame = LARGE) -> float:
    return round(frame.height - BOTTOM - value / levels[-1] * (frame.height - TOP - BOTTOM), 2)


def _inner(step: float) -> float:
    """The width of a column: a little air between two of them where there is room."""
    return round(max(step - 2, step * 0.8), 2)


def _pieces(heights: Sequence[float | None], step: float, left: float = LEFT) -> list[str]:
    """Runs of figures as points; one that stands alone is a short line."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for n, height in enumerate(heights):
        if height is None:
            pieces.append([])
        else:
            pieces[-1].append((left + (n + 0.5) * step, height))
    long = [piece if len(piece) > 1 else [(piece[0][0] - 3, piece[0][1]), (piece[0][0] + 3, piece[0][1])]
            for piece in pieces if piece]  # fmt: skip
    return [" ".join(f"{x:.2f},{y:g}" for x, y in piece) for piece in long]


def _axes(
    places: Sequence[str], levels: Sequence[float], step: float, form: Format, frame: Frame = LARGE
) -> list[Label]:
    across = [
        Label(LEFT - 6, _height(level, levels, frame) + 4, form(level) if level else "0", "end") for level in levels
    ]
    every, foot = max(1, math.ceil(len(places) / frame.moments)), frame.height - 8
    below = [Label(round(LEFT + (n + 0.5) * step, 2), foot, places[n]) for n in range(every // 2, len(places), every)]
    return across + below


def _table(places: Sequence[str], series: Sequence[Series], form: Format) -> list[list[str]]:
    def cell(value: float | None) -> str:
        if not value:
            return "-" if value is None else "0"
        return f"{value:,}" if form is format_number else form(value)

    return [[place, *(cell(one.values[n]) for one in series)] for n, place in enumerate(places)]


def _words(title: str, places: Sequence[str], series: Sequence[Series], form: Format) -> str:
    """The chart in words, for readers of the screen."""
    parts = []
    for one in series:
        figures = [(value, place) for value, place in zip(one.values, places, strict=True) if value]
        if figures:
            value, place = max(figures)
            parts.append(f"{one.label} is highest at {place} with {form(value)}")
    return f"{title}. {'; '.join(parts)}." if parts else f"{title}. There are no figures."
