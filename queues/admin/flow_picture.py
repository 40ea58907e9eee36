"""The layout of a picture of flows: topics, queues, consumers, and the targets of dead letters, from left to right. No
request, no database."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from queues.admin.charts import COLOURS, format_number, format_rate
from queues.operations.flows import Edge, EdgeKind, Flows

COLUMN, BOX, ROW, BOX_HEIGHT, MARGIN = 250, 174, 46, 34, 34
LONGEST = 23
HEADS = ("Topics", "Queues and peers", "Consumers", "Dead letters")
#: Places of numbers along their lines, in turns: lines cross in the middle.
LABELS = (0.3, 0.5, 0.7)
#: Kinds of lines whose numbers stand beside them: those of the others are in the boxes that they lead to.
LABELLED = (EdgeKind.ROUTE, EdgeKind.DEAD_LETTERS)
#: Colour and pattern of each kind of line.
LOOKS: Mapping[str, tuple[str, str]] = {
    EdgeKind.SUBSCRIPTION: (COLOURS[0], ""),
    EdgeKind.ROUTE: (COLOURS[1], "8 3"),
    EdgeKind.DEAD_LETTERS: (COLOURS[2], "2 3"),
    "consumption": (COLOURS[3], ""),
}


@dataclass(frozen=True, slots=True)
class Box:
    """Something that messages go to or come from."""

    address: str
    label: str
    figures: str
    x: float
    y: float

    @property
    def middle(self) -> float:
        return self.y + BOX_HEIGHT / 2


@dataclass(frozen=True, slots=True)
class Arrow:
    """A line between two boxes, as an SVG path."""

    path: str
    colour: str
    dash: str
    width: float
    words: str
    #: The text beside it, and its place.
    label: str
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class FlowRow:
    """A row of the table: source, kind, target, messages ever and messages a second."""

    source: str
    kind: str
    target: str
    carried: str
    rate: str


@dataclass(slots=True)
class FlowPicture:
    """The picture's shapes and the table beside it, for the template."""

    words: str
    steps: list[FlowRow]
    width: float = 3 * COLUMN + BOX + 8
    height: float = 0
    box_width: int = BOX
    box_height: int = BOX_HEIGHT
    boxes: list[Box] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)
    heads: list[tuple[float, str]] = field(default_factory=list)
    legend: list[tuple[str, str, str]] = field(default_factory=list)


def draw(flows: Flows) -> FlowPicture:
    """Place everything: queues in rows, topics and targets beside the middle of theirs."""
    columns = _columns(flows)
    queues = {address: float(n) for n, address in enumerate(_in_order(columns[1], flows.edges))}
    topics = _beside(columns[0], queues, [(edge.source, edge.target) for edge in flows.edges])
    targets = _beside(columns[3], queues, [(edge.target, edge.source) for edge in flows.edges])
    consumed = {f"consumers of {address}": row for address, row in queues.items() if _consumers(flows, address)}
    boxes = {
        address: Box(address, _label(address), _figures(flows, address), column * COLUMN + 4, MARGIN + row * ROW)
        for column, placed in enumerate((topics, queues, consumed, targets))
        for address, row in placed.items()
    }
    picture = FlowPicture(_words(flows), _steps(flows), boxes=list(boxes.values()))
    rows = max((row for placed in (topics, queues, targets) for row in placed.values()), default=-1.0) + 1
    picture.height = MARGIN + max(rows, 1) * ROW
    picture.heads = [(column * COLUMN + 4, head) for column, head in enumerate(HEADS)]
    for n, edge in enumerate(sorted(flows.edges)):
        if edge.source in boxes and edge.target in boxes:
            carried = _carried(flows, edge)
            said = f"{edge.source} to {edge.target}, {edge.kind}"
            picture.arrows.append(_arrow(boxes[edge.source], boxes[edge.target], edge.kind, carried, said, n))
    for address in queues:
        if (name := f"consumers of {address}") in boxes:
            counts = flows.queues[address].counts
            said = f"{_label(address)} to its consumers"
            picture.arrows.append(_arrow(boxes[address], boxes[name], "consumption", counts.completed, said))
    used = {arrow.colour for arrow in picture.arrows}
    picture.legend = [(kind, colour, dash) for kind, (colour, dash) in LOOKS.items() if colour in used]
    return picture


def _columns(flows: Flows) -> list[set[str]]:
    """Addresses by column: topics; queues; peers, which consume; queues that only take dead letters."""
    addresses = flows.addresses
    topics = {one for one in addresses if one.startswith("topic:")}
    dead = {edge.target for edge in flows.edges if edge.kind is EdgeKind.DEAD_LETTERS}
    busy = {end for edge in flows.edges for end in _ends(edge)}
    targets = dead - busy
    return [topics, addresses - topics - targets, set(), targets]


def _ends(edge: Edge) -> tuple[str, ...]:
    """The ends of an edge that make a queue more than a place for dead letters."""
    return (edge.source,) if edge.kind is EdgeKind.DEAD_LETTERS else (edge.source, edge.target)


def _in_order(queues: Iterable[str], edges: Iterable[Edge]) -> list[str]:
    """Queues of the same source below each other."""
    first: dict[str, str] = {}
    for edge in sorted(edges):
        if edge.kind is not EdgeKind.DEAD_LETTERS:
            first.setdefault(edge.target, edge.source)
    return sorted(queues, key=lambda one: (first.get(one, "~"), one))


def _beside(addresses: Iterable[str], rows: Mapping[str, float], pairs: list[tuple[str, str]]) -> dict[str, float]:
    """Rows for addresses, each as near as there is room to the mean of the queues that it is paired with."""
    near: dict[str, list[float]] = {one: [] for one in addresses}
    for one, other in pairs:
        if one in near and other in rows:
            near[one].append(rows[other])
    means = {one: sum(found) / len(found) if found else 0.0 for one, found in near.items()}
    placed: dict[str, float] = {}
    free = 0.0
    for one in sorted(means, key=lambda each: (means[each], each)):
        placed[one] = max(means[one], free)
        free = placed[one] + 1
    return placed


def _arrow(source: Box, target: Box, kind: str, carried: int | None, said: str, n: int = 0) -> Arrow:
    colour, dash = LOOKS[kind]
    if source.x == target.x:  # the same column: around on the left
        start, end, half = source.x, target.x, source.x - 50
    else:
        forward = source.x < target.x
        start, end = (source.x + BOX, target.x) if forward else (source.x, target.x + BOX)
        half = (start + end) / 2
    above, below = f"{source.middle:g}", f"{target.middle:g}"
    path = f"M{start:g},{above} C{half:g},{above} {half:g},{below} {end:g},{below}"
    width = 1.5 if carried is None else round(min(1.5 + math.log10(1 + carried) / 2, 5.0), 2)
    amount = "" if carried is None else f": {format_number(carried)} messages"
    label = format_number(carried) if carried is not None and kind in LABELLED else ""
    if abs(end - start) > COLUMN:  # behind the boxes of a column: the number stands in the gap before the target
        x, y = end + math.copysign(COLUMN - BOX, start - end) / 2, target.middle
    else:
        along = LABELS[n % len(LABELS)]
        x = max(_bezier(start, half, half, end, along), 20.0)
        y = _bezier(source.middle, source.middle, target.middle, target.middle, along)
    return Arrow(path, colour, dash, width, f"{said}{amount}", label, round(x, 1), round(y + 4, 1))


def _bezier(start: float, first: float, second: float, end: float, along: float) -> float:
    """A coordinate of the point so far along a curve."""
    left = 1 - along
    return left**3 * start + 3 * left**2 * along * first + 3 * left * along**2 * second + along**3 * end


def _carried(flows: Flows, edge: Edge) -> int | None:
    """Messages that went this way; None where that is not known, as of a queue that is gone."""
    if edge in flows.traffic:
        return flows.traffic[edge].carried
    if edge.kind is EdgeKind.SUBSCRIPTION and (state := flows.queues.get(edge.target)) is not None:
        return state.counts.published
    return None


def _rate(flows: Flows, edge: Edge) -> str:
    """Messages a second that go this way, where that is known."""
    if edge in flows.traffic:
        return format_rate(flows.traffic[edge].rate)
    if edge.kind is EdgeKind.SUBSCRIPTION and (state := flows.queues.get(edge.target)) is not None:
        return format_rate(state.in_rate)
    return ""


def _consumers(flows: Flows, address: str) -> str:
    state, workers = flows.queues.get(address), flows.workers.get(address, 0)
    if state is None:
        return ""
    parts = [f"workers: {workers:,}" if workers else "", f"nodes: {state.nodes:,}" if state.nodes else ""]
    return ", ".join(filter(None, parts))


def _figures(flows: Flows, address: str) -> str:
    if address.startswith("consumers of "):
        state = flows.queues[address.removeprefix("consumers of ")]
        return f"{format_number(state.counts.completed)} acknowledged"
    state_or_none = flows.queues.get(address)
    if state_or_none is None:
        return "" if not address.startswith("queue:") else "there is none"
    counts = state_or_none.counts
    dead = f", {format_number(counts.dead)} dead" if counts.dead else ""
    return f"{format_number(counts.published)} in, {format_number(counts.held)} held{dead}"


def _label(address: str) -> str:
    name = "consumers" if address.startswith("consumers of ") else address.partition(":")[2]
    name = f"peer {name}" if address.startswith("peer:") else name
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"


def _steps(flows: Flows) -> list[FlowRow]:
    steps = []
    for edge in sorted(flows.edges):
        carried = _carried(flows, edge)
        shown = "unknown" if carried is None else f"{carried:,}"
        steps.append(FlowRow(edge.source, str(edge.kind), edge.target, shown, _rate(flows, edge)))
    for address, state in sorted(flows.queues.items()):
        if consumers := _consumers(flows, address):
            completed, rate = f"{state.counts.completed:,}", format_rate(state.out_rate)
            steps.append(FlowRow(address, "consumed by", consumers, completed, rate))
    return steps


def _words(flows: Flows) -> str:
    kinds = {kind: sum(edge.kind is kind for edge in flows.edges) for kind in EdgeKind}
    named = ", ".join(f"{kind}: {count:,}" for kind, count in kinds.items() if count)
    return f"{len(flows.queues):,} queues. {named or 'Nothing leads from one to another'}."
