"""Charts: figures over time, which a script draws from the table that each has; bars and stretches of time by name,
which stand in tables. No request, no database.

Each has its exact figures in a table, also without the script. Colours are the stylesheet's, by number; lines differ in
their patterns too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from django.template.loader import render_to_string
from django.utils.formats import number_format
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from queues.formats.times import clock, zone

#: Of the line behind a queue's name.
SPARK_WIDTH, SPARK_HEIGHT = 90, 24
MINUTE_FORM = "%Y-%m-%d %H:%M"

Format = Callable[[float], str]


def _localized(value: float, digits: int) -> str:
    """As it is written in the page's language, without zeros at its end."""
    text = f"{value:.{digits}f}"
    return number_format(Decimal(text), len(text.partition(".")[2].rstrip("0")), use_l10n=True, force_grouping=True)


def _digits(value: float) -> int:
    """Places after the point that make three figures of a number below 1,000."""
    return 2 if value < 10 else 1 if value < 100 else 0


def format_number(value: float) -> str:
    """A count as people write it: 1,250 or 3.2 M."""
    for size, sign in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if value >= size:
            return _localized(value / (1000 if sign == " k" else size), 1) + sign
    return _localized(value, 1)


def format_rate(value: float) -> str:
    """Messages a second."""
    return f"{format_number(value)}/s" if value >= 0.1 or not value else f"under {_localized(0.1, 1)}/s"


def format_size(value: float) -> str:
    """Bytes: 512 kB, 1.3 GB."""
    for unit, sign in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= unit:
            return f"{_localized(value / unit, _digits(value / unit))} {sign}"
    return f"{value:.0f} bytes"


def format_seconds(value: float) -> str:
    """A time: 4 ms, 1.5 s, 3 min, 2 h."""
    for size, sign in ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (0.001, "ms")):
        if value >= size or sign == "ms":
            return f"{_localized(value / size, _digits(value / size))} {sign}"
    raise AssertionError


#: By the unit of a chart, as the script knows it.
FORMATS: dict[str, Format] = {
    "count": format_number, "rate": format_rate, "bytes": format_size, "seconds": format_seconds,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Series:
    """Figures of one kind, one per place. None: no figure."""

    label: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened at a Unix time, in words."""

    at: float
    words: str


@dataclass(frozen=True, slots=True)
class _Chart:
    """Series, and the table of their figures. `unit` is one of `FORMATS`."""

    id: str
    title: str
    series: Sequence[Series]
    unit: str

    def cell(self, value: float | None) -> str:
        """A figure in the table: counts are exact."""
        if value is None:
            return "-"
        return _localized(value, 2) if self.unit == "count" else FORMATS[self.unit](value)

    @property
    def has_figures(self) -> bool:
        return any(any(one.values) for one in self.series)

    @property
    def places(self) -> list[str]:
        """What the rows of the table are about."""
        raise NotImplementedError

    @property
    def rows(self) -> list[list[str]]:
        """The table, as people read it."""
        return [[place, *(self.cell(one.values[n]) for one in self.series)] for n, place in enumerate(self.places)]

    def csv(self) -> Iterable[list[object]]:
        """Head and rows for machines."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class TimeChart(_Chart):
    """A line for each series; or, `stacked`, areas on top of each other. `times` are Unix times, and a figure is that
    of the period which ends then, or begins then if `begin` is the first of them. No time is later than `end`."""

    times: Sequence[float]
    begin: float
    end: float
    stacked: bool = False

    @property
    def places(self) -> list[str]:
        return [clock(datetime.fromtimestamp(time, UTC), MINUTE_FORM) for time in self.times]

    @property
    def data(self) -> dict[str, Any]:
        """For the script: seconds and figures as they are."""
        values = [one.values for one in self.series]
        return {
            "unit": self.unit, "stacked": self.stacked, "times": self.times, "range": [self.begin, self.end],
            "values": values,
        }  # fmt: skip

    @property
    def zone(self) -> str:
        return zone()

    @property
    def words(self) -> str:
        """The chart in words, for readers of the screen."""
        parts = []
        for one in self.series:
            if figures := [(value, place) for value, place in zip(one.values, self.places, strict=True) if value]:
                value, place = max(figures)
                parts.append(f"{one.label} is highest at {place} with {self.cell(value)}")
        return f"{self.title}. {'; '.join(parts)}." if parts else f"{self.title}. There are no figures."

    def csv(self) -> Iterable[list[object]]:
        yield ["time", *(one.label for one in self.series)]
        for n, time in enumerate(self.times):
            at = f"{datetime.fromtimestamp(time, UTC):%Y-%m-%dT%H:%M:%SZ}"
            yield [at, *("" if one.values[n] is None else one.values[n] for one in self.series)]


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a bar: its place and size in percent, its colour's number, from 1, and what it stands for."""

    x: float
    width: float
    colour: int
    words: str
    y: float = 0
    height: float = 100


@dataclass(frozen=True, slots=True)
class BarChart(_Chart):
    """A table with a bar for each name, the series behind each other; those without any figure are left out."""

    names: Sequence[str]

    @property
    def places(self) -> list[str]:
        return list(self.names)

    @property
    def shown(self) -> list[tuple[int, Series]]:
        """The series that have figures, by the numbers of their colours."""
        return [(n, one) for n, one in enumerate(self.series, 1) if any(one.values)]

    @property
    def bars(self) -> list[tuple[str, list[str], list[Piece]]]:
        """Name, figures and bar of each row."""
        shown = self.shown
        highest = max((sum(one.values[n] or 0 for _, one in shown) for n in range(len(self.names))), default=0) or 1
        rows = []
        for n, name in enumerate(self.names):
            x, pieces = 0.0, []
            for colour, one in shown:
                width = 100 * (one.values[n] or 0) / highest
                pieces.append(Piece(round(x, 3), round(width, 3), colour, f"{one.label}: {self.cell(one.values[n])}"))
                x += width
            rows.append((name, [self.cell(one.values[n]) for _, one in shown], [one for one in pieces if one.width]))
        return rows

    def csv(self) -> Iterable[list[object]]:
        yield ["name", *(one.label for one in self.series)]
        for n, name in enumerate(self.names):
            yield [name, *("" if one.values[n] is None else one.values[n] for one in self.series)]


@dataclass(frozen=True, slots=True)
class Charts:
    """The charts of a page, for its template. `address` is where their figures are to be had as CSV, with `&chart=ID`,
    and as JSON; empty: nowhere. With `live` they follow the broker."""

    charts: Sequence[TimeChart | BarChart] = ()
    address: str = ""
    live: bool = False
    events: Sequence[Event] = field(default=())

    @property
    def setting(self) -> dict[str, Any]:
        """What the script knows of the page."""
        return {"zone": zone(), "events": self.marks}

    @property
    def marks(self) -> list[tuple[float, str, str]]:
        """Events: Unix time, the time as people read it, words."""
        return [(one.at, clock(datetime.fromtimestamp(one.at, UTC)), one.words) for one in self.events]

    def as_json(self) -> dict[str, Any]:
        """What the script asks for again: by chart its data with the rows of its table, and events."""
        figures = {one.id: one.data | {"rows": one.rows} for one in self.charts if isinstance(one, TimeChart)}
        return {"charts": figures, "events": self.marks}

    def __html__(self) -> SafeString:
        return render_to_string("admin/queues/charts.html", {"page": self})

    __str__ = __html__


@dataclass(frozen=True, slots=True)
class Stretch:
    """A time on a line of a timeline: which line, which kind, from and until (Unix times), and what it stands for."""

    line: str
    kind: int
    start: float
    end: float
    words: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """Stretches of time by line between two Unix times, and their table."""

    id: str
    title: str
    words: str
    kinds: Sequence[str]
    stretches: Sequence[Stretch]
    begin: float
    end: float
    heads: list[str]
    rows: list[list[str]]

    @property
    def ends(self) -> tuple[str, str]:
        begin, end = (clock(datetime.fromtimestamp(one, UTC), MINUTE_FORM) for one in (self.begin, self.end))
        return begin, end

    @property
    def lines(self) -> list[tuple[str, list[Piece]]]:
        """By line the pieces, those of each kind below each other."""
        unit, height = 100 / max(self.end - self.begin, 1e-9), 100 / max(1, len(self.kinds))
        lines: dict[str, list[Piece]] = {one.line: [] for one in self.stretches}
        for one in self.stretches:
            begin, end = (min(max(moment, self.begin), self.end) - self.begin for moment in (one.start, one.end))
            width = max((end - begin) * unit, 0.2)
            place = round(begin * unit, 3), round(width, 3)
            lines[one.line].append(Piece(*place, one.kind + 1, one.words, one.kind * height, height))
        return list(lines.items())

    def __html__(self) -> SafeString:
        return render_to_string("admin/queues/timeline.html", {"chart": self})

    __str__ = __html__


def sparkline(words: str, values: Sequence[float | None]) -> SafeString:
    """A line without axes, from 0 to its highest figure, which is written beside it; `words` say what it shows. Nothing
    for figures that are all missing."""
    highest = max((value for value in values if value is not None), default=None)
    if highest is None:
        return SafeString("")
    step, room = SPARK_WIDTH / max(1, len(values)), SPARK_HEIGHT - 4
    heights = [None if one is None else round(SPARK_HEIGHT - 2 - one / (highest or 1) * room, 1) for one in values]
    return format_html(
        '<span class="spark"><svg viewBox="0 0 {} {}" width="{}" height="{}" role="img" aria-label="{}">{}</svg> {}'
        "</span>",
        SPARK_WIDTH, SPARK_HEIGHT, SPARK_WIDTH, SPARK_HEIGHT, f"{words}, at most {format_number(highest)}",
        format_html_join("", '<polyline points="{}"/>', ((piece,) for piece in _pieces(heights, step))),
        format_number(highest),
    )  # fmt: skip


def _pieces(heights: Sequence[float | None], step: float) -> list[str]:
    """Runs of figures as points; one that stands alone is a short line."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for n, height in enumerate(heights):
        if height is None:
            pieces.append([])
        else:
            pieces[-1].append(((n + 0.5) * step, height))
    long = [piece if len(piece) > 1 else [(piece[0][0] - 3, piece[0][1]), (piece[0][0] + 3, piece[0][1])]
            for piece in pieces if piece]  # fmt: skip
    return [" ".join(f"{x:.2f},{y:g}" for x, y in piece) for piece in long]
