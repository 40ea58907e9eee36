"""The layout of a picture of flows: topics, queues, consumers, and the targets of dead letters, from left to right. No
request, no database."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from queues.admin.charts import format_number, format_rate
from queues.operations.flows import Edge, EdgeKind, Flows

COLUMN, BOX, ROW, BOX_HEIGHT, MARGIN = 250, 174, 46, 34, 34
MAX_LABEL = 23
HEADS = ("Topics", "Queues and peers", "Consumers", "Dead letters")
#: The kind of a way to consumers, and the beginning of their name.
CONSUMED, CONSUMERS = "consumed by", "consumers of "
#: Places of numbers along their lines, in turns: lines cross in the middle.
LABELS = (0.3, 0.5, 0.7)
#: Kinds of lines whose numbers stand beside them: those of the others are in the boxes that they lead to.
LABELLED = (EdgeKind.ROUTE, EdgeKind.DEAD_LETTERS)
#: Colour and pattern of each kind of line; the colours are Okabe's and Ito's.
LOOKS: Mapping[str, tuple[str, str]] = {
    EdgeKind.SUBSCRIPTION: ("#0072b2", ""),
    EdgeKind.ROUTE: ("#e69f00", "8 3"),
    EdgeKind.DEAD_LETTERS: ("#d55e00", "2 3"),
    CONSUMED: ("#009e73", ""),
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
class Way:
    """Messages go from an address to another one, or to the consumers of a queue: how many ever, and a second; None
    where that is not known, as of a queue that is gone."""

    source: str
    kind: str
    target: str
    words: str
    carried: int | None = None
    rate: float | None = None
    #: The text for the target, where that is no address.
    consumers: str = ""

    @property
    def figures(self) -> tuple[str, str]:
        """Both in words."""
        carried = "unknown" if self.carried is None else f"{self.carried:,}"
        return carried, "" if self.rate is None else format_rate(self.rate)


@dataclass(slots=True)
class FlowPicture:
    """The picture's shapes and the table beside it, for the template."""

    words: str
    steps: list[Way]
    boxes: list[Box]
    arrows: list[Arrow]
    height: float
    width: float = 3 * COLUMN + BOX + 8
    box_width: int = BOX
    box_height: int = BOX_HEIGHT
    heads: Sequence[tuple[float, str]] = tuple((column * COLUMN + 4, head) for column, head in enumerate(HEADS))

    @property
    def legend(self) -> list[tuple[str, str, str]]:
        used = {arrow.colour for arrow in self.arrows}
        return [(kind, colour, dash) for kind, (colour, dash) in LOOKS.items() if colour in used]


def draw(flows: Flows) -> FlowPicture:
    """Place everything: queues in rows, topics and targets beside the middle of theirs."""
    columns, ways = _columns(flows), _ways(flows)
    queues = {address: float(n) for n, address in enumerate(_in_order(columns[1], flows.edges))}
    topics = _beside(columns[0], queues, [(edge.source, edge.target) for edge in flows.edges])
    targets = _beside(columns[2], queues, [(edge.target, edge.source) for edge in flows.edges])
    consumed = {way.target: queues[way.source] for way in ways if way.consumers and way.source in queues}
    boxes = {
        address: Box(address, _label(address), _figures(flows, address), column * COLUMN + 4, MARGIN + row * ROW)
        for column, placed in enumerate((topics, queues, consumed, targets))
        for address, row in placed.items()
    }
    arrows = [
        _arrow(boxes[way.source], boxes[way.target], way, n)
        for n, way in enumerate(ways) if way.source in boxes and way.target in boxes
    ]  # fmt: skip
    rows = max((box.y for box in boxes.values()), default=MARGIN) - MARGIN + ROW
    return FlowPicture(_words(flows), ways, list(boxes.values()), arrows, MARGIN + rows)


def _ways(flows: Flows) -> list[Way]:
    ways = []
    for edge in sorted(flows.edges):
        words, state = f"{edge.source} to {edge.target}, {edge.kind}", flows.queues.get(edge.target)
        carried, rate = None, None
        if (traffic := flows.traffic.get(edge)) is not None:
            carried, rate = traffic.carried, traffic.rate
        elif edge.kind is EdgeKind.SUBSCRIPTION and state is not None:
            carried, rate = state.counts.published, state.in_rate
        ways.append(Way(edge.source, edge.kind, edge.target, words, carried, rate))
    for address, state in sorted(flows.queues.items()):
        workers = flows.workers.get(address, 0)
        parts = [f"workers: {workers:,}" if workers else "", f"nodes: {state.nodes:,}" if state.nodes else ""]
        if consumers := ", ".join(filter(None, parts)):
            target, words = f"{CONSUMERS}{address}", f"{_label(address)} to its consumers"
            ways.append(Way(address, CONSUMED, target, words, state.counts.completed, state.out_rate, consumers))
    return ways


def _columns(flows: Flows) -> list[set[str]]:
    """Addresses by column: topics; queues and peers; queues that only take dead letters."""
    addresses = flows.addresses
    topics = {one for one in addresses if one.startswith("topic:")}
    dead = {edge.target for edge in flows.edges if edge.kind is EdgeKind.DEAD_LETTERS}
    busy = {edge.source for edge in flows.edges}
    busy |= {edge.target for edge in flows.edges if edge.kind is not EdgeKind.DEAD_LETTERS}
    targets = dead - busy
    return [topics, addresses - topics - targets, targets]


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


def _arrow(source: Box, target: Box, way: Way, n: int) -> Arrow:
    (colour, dash), carried = LOOKS[way.kind], way.carried
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
    label = format_number(carried) if carried is not None and way.kind in LABELLED else ""
    if abs(end - start) > COLUMN:  # behind the boxes of a column: the number stands in the gap before the target
        x, y = end + math.copysign(COLUMN - BOX, start - end) / 2, target.middle
    else:
        along = LABELS[n % len(LABELS)]
        x = max(_bezier(start, half, half, end, along), 20.0)
        y = _bezier(source.middle, source.middle, target.middle, target.middle, along)
    return Arrow(path, colour, dash, width, f"{way.words}{amount}", label, round(x, 1), round(y + 4, 1))


def _bezier(start: float, first: float, second: float, end: float, along: float) -> float:
    """A coordinate of the point so far along a curve."""
    left = 1 - along
    return left**3 * start + 3 * left**2 * along * first + 3 * left * along**2 * second + along**3 * end


def _figures(flows: Flows, address: str) -> str:
    state = flows.queues.get(address.removeprefix(CONSUMERS))
    if state is None:
        return "there is none" if address.startswith("queue:") else ""
    counts = state.counts
    if address.startswith(CONSUMERS):
        return f"{format_number(counts.completed)} acknowledged"
    dead = f", {format_number(counts.dead)} dead" if counts.dead else ""
    return f"{format_number(counts.published)} in, {format_number(counts.held)} held{dead}"


def _label(address: str) -> str:
    name = "consumers" if address.startswith(CONSUMERS) else address.partition(":")[2]
    name = f"peer {name}" if address.startswith("peer:") else name
    return name if len(name) <= MAX_LABEL else f"{name[: MAX_LABEL - 1]}…"


def _words(flows: Flows) -> str:
    kinds = {kind: sum(edge.kind is kind for edge in flows.edges) for kind in EdgeKind}
    named = ", ".join(f"{kind}: {count:,}" for kind, count in kinds.items() if count)
    return f"{len(flows.queues):,} queues. {named or 'Nothing leads from one to another'}."
