"""The layout of a network's picture: nodes on an ellipse, and lines between them. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import cos, pi, sin
from typing import Final, NamedTuple

#: Nodes in a picture.
MAX_STATIONS: Final = 24
WIDTH: Final = 760
HEIGHT: Final = 400
RADIUS_X: Final = 230
RADIUS_Y: Final = 145
LABEL: Final = 26
MAX_LABEL: Final = 24

#: The ids of two nodes.
Edge = frozenset[int]


class Station(NamedTuple):
    """A node to draw."""

    id: int
    name: str
    note: str
    """A few words under the name."""
    leads: bool
    here: bool
    """Whether it is the node that the picture belongs to."""


class Dot(NamedTuple):
    """A node in the picture."""

    station: Station
    x: float
    y: float
    label_x: float
    label_y: float
    anchor: str
    """SVG's `text-anchor`."""

    @property
    def label(self) -> str:
        """The name, shortened to its room."""
        name = self.station.name
        return name if len(name) <= MAX_LABEL else f"{name[: MAX_LABEL - 1]}…"


class PictureLine(NamedTuple):
    """A link, or, if not `direct`, a way over unknown links."""

    x1: float
    y1: float
    x2: float
    y2: float
    direct: bool


class NetworkPicture(NamedTuple):
    """The template's data."""

    width: int
    height: int
    dots: list[Dot]
    lines: list[PictureLine]
    left_out: int
    """Number of nodes without room."""


def draw(stations: Sequence[Station], links: Collection[Edge], ways: Collection[Edge]) -> NetworkPicture:
    """Place the stations on an ellipse, the first on top, with lines between the shown ones.

    A known link replaces a way.
    """
    shown = stations[:MAX_STATIONS]
    dots = {station.id: _dot(station, n, len(shown)) for n, station in enumerate(shown)}
    lines = []
    for edge in sorted({*links, *ways}, key=sorted):
        if len(edge) == 2 and edge <= dots.keys():
            one, other = (dots[id] for id in sorted(edge))
            lines.append(PictureLine(one.x, one.y, other.x, other.y, edge in links))
    return NetworkPicture(WIDTH, HEIGHT, [*dots.values()], lines, len(stations) - len(shown))


def _dot(station: Station, n: int, count: int) -> Dot:
    angle = 2 * pi * n / count - pi / 2
    across, down = cos(angle), sin(angle)
    x, y = WIDTH / 2 + RADIUS_X * across, HEIGHT / 2 + RADIUS_Y * down
    if abs(across) < 0.2:
        label_x, anchor, label_y = x, "middle", y - LABEL - 16 if down < 0 else y + LABEL + 4
    else:
        label_x, anchor, label_y = x + (LABEL if across > 0 else -LABEL), "start" if across > 0 else "end", y - 2
    return Dot(station, round(x, 1), round(y, 1), round(label_x, 1), round(label_y, 1), anchor)
