"""A network and its faults in one run: drawn from a seed, or read from a text (`str` writes it)."""

from __future__ import annotations

from ast import literal_eval
from dataclasses import dataclass, field, fields
from enum import Enum
from itertools import combinations
from random import Random
from typing import Final


class FaultKind(Enum):
    """A kind of fault, or its end."""

    CRASH = "crash"
    """A node dies; its disk remains."""
    LOSE = "lose"
    """A node dies, and its disk with it."""
    RESTART = "restart"
    LEAVE = "leave"
    """A node stops in order."""
    SPLIT = "split"
    """Only nodes of one group reach each other."""
    ISOLATE_LEADER = "isolate-leader"
    """The leader of that moment is separated from all others."""
    CRASH_LEADER = "crash-leader"
    HEAL = "heal"
    """All nodes reach each other, and those that are down start."""
    CUT = "cut"
    """All links break once."""
    IRC_LOST = "irc-lost"
    PAUSE = "pause"
    """A process stands still (SIGSTOP); its clock goes on, and events wait for it."""
    PAUSE_LEADER = "pause-leader"
    SUSPEND = "suspend"
    """A machine stands still, and its timers with it."""
    SUSPEND_LEADER = "suspend-leader"
    RESUME = "resume"
    """All nodes that stand still go on."""
    FORGE = "forge"
    """A member forges the leader's DROP."""
    GHOST = "ghost"
    """One node records a member that does not exist."""


@dataclass(frozen=True, slots=True)
class ScenarioFault:
    """A fault, in seconds after the beginning."""

    at: float
    kind: FaultKind
    nodes: tuple[int, ...] = ()
    """The nodes that it hits; one group of a split."""

    def __str__(self) -> str:
        return " ".join(["at", f"{self.at:.2f}", self.kind.value, *map(str, self.nodes)])


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run: a network and its faults. Healed at `end`, it must find a leader."""

    seed: int
    nodes: int
    links: tuple[tuple[int, int], ...]
    """Pairs of a dialling and a dialled node."""
    voters: int
    """Nodes, from 0 on, with a vote on their disks at first; with none, node 0 founds the network."""
    ordered: bool = True
    """Whether messages on a link keep their order, and are lost only with it."""
    delay: tuple[float, float] = (0.001, 0.05)
    """Seconds that a message takes."""
    loss: float = 0.0
    """The share of messages that is lost."""
    lasting_loss: float = 0.0
    """The share that is lost after healing."""
    duplicates: float = 0.0
    late: float = 0.0
    """Seconds by which a duplicate may be late."""
    disk: tuple[float, float] = (0.001, 0.02)
    """Seconds that a write to disk takes."""
    rates: tuple[float, ...] = ()
    """The rate of each node's clock."""
    faults: tuple[ScenarioFault, ...] = ()
    end: float = 45.0

    def __str__(self) -> str:
        lines = [f"{name} {getattr(self, name)!r}" for name in _PARTS]
        return "\n".join([*lines, *map(str, self.faults)]) + "\n"


_PARTS: Final = tuple(each.name for each in fields(Scenario) if each.name != "faults")


def parse_scenario(text: str) -> Scenario:
    """Read a scenario's `str`; lines that begin with # are comments. Raises ValueError, SyntaxError."""
    found: dict[str, object] = {}
    faults = []
    for line in filter(None, text.splitlines()):
        name, _, rest = line.partition(" ")
        if name == "at":
            at, kind, *nodes = rest.split()
            faults.append(ScenarioFault(float(at), FaultKind(kind), tuple(map(int, nodes))))
        elif name in _PARTS:
            found[name] = literal_eval(rest)
        elif not name.startswith("#"):
            raise ValueError(f"no part of a scenario: {line!r}")
    return Scenario(**found, faults=tuple(faults))  # type: ignore[arg-type]


def draw_scenario(seed: int) -> Scenario:
    """The scenario that belongs to a seed."""
    return _Draw(Random(seed)).scenario(seed)


@dataclass(slots=True)
class _Draw:
    """Draws a scenario, and remembers the nodes that are down."""

    rng: Random
    nodes: int = 0
    down: set[int] = field(default_factory=set)
    losses: int = 0

    def scenario(self, seed: int) -> Scenario:
        rng = self.rng
        self.nodes = rng.choice((2, 3, 3, 3, 3, 4, 5, 5, 5, 5, 6, 7))
        self.losses = (self.nodes - 1) // 2 if rng.random() < 0.3 else 0
        end = rng.uniform(30, 100)
        slow = rng.random() < 0.15
        ordered = rng.random() < 0.5
        loss = 0.0 if ordered else rng.choice((0.0, 0.02, 0.1, 0.3))
        return Scenario(
            seed=seed,
            nodes=self.nodes,
            links=self._topology(),
            voters=rng.choice((0, rng.randint(1, self.nodes), *[self.nodes] * 4)),
            ordered=ordered,
            delay=(0.01, rng.uniform(0.3, 1.0)) if slow else (0.001, rng.uniform(0.01, 0.3)),
            loss=loss,
            lasting_loss=min(loss, 0.1),
            duplicates=0.0 if ordered else rng.choice((0.0, 0.05, 0.2)),
            late=0.0 if ordered else rng.choice((0.0, 1.0, 30.0)),
            disk=(0.001, rng.choice((0.01, 0.05, 0.3) if slow else (0.01, 0.05, 0.3, 1.5))),
            rates=tuple(round(rng.uniform(0.9, 1.1), 3) for _ in range(self.nodes)),
            faults=self._faults(end),
            end=round(end, 2),
        )

    def _topology(self) -> tuple[tuple[int, int], ...]:
        rng, nodes = self.rng, self.nodes
        every = list(combinations(range(nodes), 2))
        shape = rng.choice(("mesh", "mesh", "star", "ring", "tree", "some"))
        if shape == "mesh" and nodes <= 5:
            chosen = every
        elif shape == "star":
            chosen = [(0, each) for each in range(1, nodes)]
        elif shape == "ring":
            chosen = [(each, each + 1) for each in range(nodes - 1)] + [(0, nodes - 1)]
        else:
            chosen = [(rng.randrange(each), each) for each in range(1, nodes)]
            if shape == "some":
                chosen += rng.sample(sorted(set(every) - set(chosen)), min(2, len(every) - len(chosen)))
        # The node that joins later dials.
        return tuple((b, a) for a, b in chosen)

    def _faults(self, end: float) -> tuple[ScenarioFault, ...]:
        rng = self.rng
        times = [rng.uniform(2, end) for _ in range(rng.randint(1, round(end / 6)))]
        # Faults shortly after others, and shortly before the healing, find most errors.
        times += [at + rng.expovariate(1.0) for at in times if rng.random() < 0.3]
        times += [end - rng.uniform(0, 12) for _ in range(rng.randint(0, 2))]
        moments = sorted(round(at, 2) for at in times if at < end)
        faults = [fault for at in moments if (fault := self._fault(at)) is not None]
        if rng.random() < 0.4:
            faults += self._standstill(rng.uniform(2, end))
        if rng.random() < 0.4:
            faults += rng.choice((self._baton, self._return))(rng.uniform(2, max(end - 30, 3)))
        return tuple(sorted((fault for fault in faults if fault.at < end), key=lambda fault: fault.at))

    def _baton(self, at: float) -> list[ScenarioFault]:
        """One node is away until no promise binds it; when it returns, the leader is isolated."""
        rng = self.rng
        away, restarted = rng.sample(range(self.nodes), 2)
        back = at + rng.uniform(9, 20)
        faults = [
            ScenarioFault(round(at, 2), FaultKind.SPLIT, (away,)),
            ScenarioFault(round(back, 2), FaultKind.ISOLATE_LEADER),
        ]
        if rng.random() < 0.5:
            faults += [
                ScenarioFault(round(back - rng.uniform(0.1, 1), 2), FaultKind.CRASH, (restarted,)),
                ScenarioFault(round(back + rng.uniform(0, 1), 2), FaultKind.RESTART, (restarted,)),
            ]
        return faults

    def _standstill(self, at: float) -> list[ScenarioFault]:
        """A node, or the leader, stands still, mostly for longer than a lease."""
        rng = self.rng
        kind = rng.choice(_STANDSTILLS)
        nodes = () if kind in (FaultKind.PAUSE_LEADER, FaultKind.SUSPEND_LEADER) else (rng.randrange(self.nodes),)
        return [
            ScenarioFault(round(at, 2), kind, nodes),
            ScenarioFault(round(at + rng.uniform(1, 25), 2), FaultKind.RESUME),
        ]

    def _return(self, at: float) -> list[ScenarioFault]:
        """Some nodes are down until they have lost their votes; they return separated from all others but one."""
        rng = self.rng
        order = rng.sample(range(self.nodes), self.nodes)
        down = order[: max(self.nodes // 2, 1)]
        back = round(at + rng.uniform(15, 30), 2)
        return [
            *[ScenarioFault(round(at, 2), FaultKind.CRASH, (node,)) for node in down],
            ScenarioFault(back, FaultKind.SPLIT, tuple(sorted([*down, order[-1]]))),
            *[ScenarioFault(back, FaultKind.RESTART, (node,)) for node in down],
        ]

    def _fault(self, at: float) -> ScenarioFault | None:
        rng = self.rng
        kind = rng.choice(_LIKELY)
        if kind in (FaultKind.CRASH, FaultKind.LEAVE, FaultKind.LOSE):
            up = sorted(set(range(self.nodes)) - self.down)
            if (kind is FaultKind.LOSE and self.losses == 0) or not up:
                return None
            self.losses -= kind is FaultKind.LOSE
            node = rng.choice(up)
            self.down.add(node)
            return ScenarioFault(at, kind, (node,))
        if kind is FaultKind.RESTART:
            if not self.down:
                return None
            node = rng.choice(sorted(self.down))
            self.down.remove(node)
            return ScenarioFault(at, kind, (node,))
        if kind is FaultKind.SPLIT:
            group = rng.sample(range(self.nodes), rng.randint(1, self.nodes - 1))
            return ScenarioFault(at, kind, tuple(sorted(group)))
        if kind in (FaultKind.FORGE, FaultKind.GHOST):
            return ScenarioFault(at, kind, (rng.randrange(self.nodes),))
        if kind is FaultKind.HEAL:
            self.down.clear()
        return ScenarioFault(at, kind)


#: Kinds of faults, as often as they are drawn.
_STANDSTILLS: Final = (
    FaultKind.PAUSE, FaultKind.PAUSE_LEADER, FaultKind.SUSPEND, FaultKind.SUSPEND_LEADER, FaultKind.SUSPEND_LEADER,
)  # fmt: skip
_LIKELY: Final = (
    *[FaultKind.CRASH] * 4, FaultKind.LOSE, *[FaultKind.RESTART] * 4, FaultKind.LEAVE, *[FaultKind.SPLIT] * 4,
    *[FaultKind.ISOLATE_LEADER] * 3, *[FaultKind.CRASH_LEADER] * 3, *[FaultKind.HEAL] * 4, FaultKind.CUT,
    FaultKind.IRC_LOST, *[FaultKind.FORGE] * 3, FaultKind.GHOST,
)  # fmt: skip
