"""Real nodes on simulated hosts: carries out their effects in virtual time.

`World` decides what happens to the hosts and the network; the cluster starts and stops nodes, brings messages from one
to the other, and has the checker look at every effect.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, Final

from hydra.protocol import effects
from hydra.protocol.codec import encode
from hydra.protocol.effects import Effect, StoredNode, Transmit
from hydra.protocol.electorate import Electorate
from hydra.protocol.messages import Drop
from hydra.protocol.node import Node, new_stored
from hydra.protocol.roles import Role
from hydra.protocol.times import Times
from tests.rigs.hydra_simulator.checker import LEADER_STAYS, Checker
from tests.rigs.hydra_simulator.faulty_nodes import StoppedClock
from tests.rigs.hydra_simulator.host import Host
from tests.rigs.hydra_simulator.network import End, Network
from tests.rigs.hydra_simulator.scenario import Scenario
from tests.rigs.hydra_simulator.schedule import Schedule

DIAL_TIME: Final = (0.001, 0.1)
IRC_TIME: Final = (0.1, 1.0)
IRC_FAILS: Final = 0.1

Trace = Callable[[str], None]


class Cluster(Schedule):
    """The nodes of one run, in virtual time."""

    def __init__(
        self, scenario: Scenario, *, node_class: type[Node] = Node, trace: Trace | None = None, only: str | None = None
    ) -> None:
        """With `only` the checker holds no other promise."""
        super().__init__()
        self.scenario = scenario
        self.rng = Random(f"world {scenario.seed}")
        self.checker = Checker(only)
        self.network = Network(scenario, self.rng)
        #: Messages sent so far.
        self.messages = 0
        self._node_class = node_class
        self._trace = trace
        self.hosts = self._hosts()

    def handled(self, node: Node) -> None:
        """Called after every event of a node."""

    def _hosts(self) -> list[Host]:
        scenario = self.scenario
        disks = [new_stored(self.rng) for _ in range(scenario.nodes)]
        if scenario.voters:
            formed = disks[: scenario.voters]
            electorate = Electorate(1, scenario.voters, frozenset(disk.voter for disk in formed))
            disks[: scenario.voters] = [StoredNode(disk.voter, 1, None, electorate) for disk in formed]
        rates = scenario.rates or (1.0,) * scenario.nodes
        return [
            Host(index, disks[index], rates[index], tuple(str(b) for a, b in scenario.links if a == index))
            for index in range(scenario.nodes)
        ]

    def leaders(self) -> list[Host]:
        """The hosts whose nodes lead."""
        return [host for host in self.hosts if host.node is not None and host.node.role is Role.LEADING]

    def _after(self, span: tuple[float, float], action: Callable[..., None], *args: Any) -> None:
        self.at(self.now + self.rng.uniform(*span), action, *args)

    # Nodes.

    def start(self, host: Host, founds: bool = False) -> None:
        """Start a host's node unless it runs."""
        if host.node is not None:
            return
        self.log(f"node {host.index} starts: {_shown(host.disk)}")
        now = host.local(self.now)
        node = self._node_class(
            name=f"n{host.index}",
            times=Times(),
            rng=Random(self.rng.getrandbits(64)),
            stored=host.disk,
            now=now,
            targets=host.targets,
            founder=founds,
            position=host.position,
        )
        host.boot(node)
        self._handle(host, node.start(now))

    def call(self, host: Host, event: Callable[..., list[Effect]], *args: Any) -> None:
        """Have a node handle an event, now or when it goes on."""
        if host.still_since is not None:
            host.waiting.append((event, args))
            return
        self._handle(host, event(host.node, host.local(self.now), *args))

    def _handle(self, host: Host, caused: list[Effect]) -> None:
        node = host.node
        assert node is not None
        for effect in caused:
            self.checker.effect(host.index, node, effect)
            self._carry_out(host, effect)
        self.checker.after_event(host.index, node)
        self.handled(node)
        self._wake_in_time(host, node)

    def _wake_in_time(self, host: Host, node: Node) -> None:
        due = host.due(node, self.now)
        if host.wake_by(due):
            self.at(due + 1e-6, self._wake, host, host.epoch, due)

    def _wake(self, host: Host, epoch: int, due: float) -> None:
        if host.node is None or host.epoch != epoch or host.wake_at != due or host.still_since is not None:
            return
        host.awake()
        if host.node.deadline <= host.local(self.now):
            self.call(host, Node.tick)
        else:
            self._wake_in_time(host, host.node)

    def crash(self, host: Host, *, lose: bool) -> None:
        """Kill a node; the first few of the rows on their way may reach the disk, which `lose` makes empty."""
        for row in host.flush(self.rng.randint(0, len(host.writes))):
            self.checker.written(row)
        if lose:
            host.lose_disk(new_stored(self.rng))
            self.checker.lost_disk(host.index)
        self._gone(host)

    def leave(self, host: Host) -> None:
        """Stop a node in order."""
        assert host.node is not None
        self._handle(host, host.node.leave(host.local(self.now)))
        for row in host.flush(len(host.writes)):
            self.checker.written(row)
        self._gone(host)

    def _gone(self, host: Host) -> None:
        host.power_off()
        self.checker.off_irc(host.index)
        for end in self.network.open_ends():
            if end.host == host.index:
                self._close(end)

    def stand_still(self, host: Host, *, timers_stop: bool) -> None:
        """Stop a node's process, or its whole machine with its timers."""
        if host.up:
            host.stand_still(self.now, timers_stop=timers_stop)
            self.checker.stands_still(host.index)

    def go_on(self, host: Host) -> None:
        """Let a node that stood still handle the events that have waited."""
        if host.node is None or host.still_since is None:
            return
        now = self.now
        since, waiting = host.go_on(now, clock_stops=issubclass(self._node_class, StoppedClock))
        for event, args in waiting:
            self.call(host, event, *args)
        wake_at = host.wake_after(since, now)
        self.at(wake_at + 1e-6, self._wake, host, host.epoch, wake_at)

    # Effects.

    def _carry_out(self, host: Host, effect: Effect) -> None:
        match effect:
            case effects.Transmit():
                self.transmit(effect)
            case effects.Persist():
                host.writes[effect.number] = effect.stored
                self._after(self.scenario.disk, self._written, host, host.epoch, effect.number)
            case effects.Dial():
                self._after(DIAL_TIME, self._dial, host, host.epoch, int(effect.target))
            case effects.CloseLink():
                self._close(self.network.end(effect.link))
            case effects.ConnectIrc():
                self._after(IRC_TIME, self._irc_connected, host, host.epoch)
            case effects.DeliverLine():
                host.position = (effect.term, effect.idx)
        if self._trace is not None and not isinstance(effect, Transmit):
            self._log_effect(host, effect)

    def _written(self, host: Host, epoch: int, number: int) -> None:
        if host.node is None or host.epoch != epoch or number not in host.writes:
            return
        for row in host.flush(sum(each <= number for each in host.writes)):
            self.checker.written(row)
        self.call(host, Node.persisted, number)

    # Links.

    def transmit(self, effect: Transmit) -> None:
        """Send a message over links."""
        for number in effect.links:
            end = self.network.end(number)
            if end is None:
                continue
            self.messages += 1
            for time in self.network.arrivals(end, self.now):
                self.at(time, self._arrive, end, effect.message)

    def _arrive(self, end: End, message: Any) -> None:
        other = end.other
        host = self.hosts[other.host]
        if host.node is None or not other.open or self.network.is_split(end.host, other.host):
            return
        if self._trace is not None:
            self.log(f"node {host.index} <- {end.host}: {encode(message, attributes=True).decode().rstrip()}")
        leads_on = self._must_lead_on(host.node, message, host.local(self.now)) and host.still_since is None
        self.call(host, Node.message_received, other.number, message)
        if leads_on and host.node.role is not Role.LEADING:
            self.checker.fail(LEADER_STAYS, f"node {host.index} is {host.node.role.name} after {message}")

    @staticmethod
    def _must_lead_on(node: Node, message: Any, now: float) -> bool:
        leader_term = node.heartbeat.leader_term
        dropped = isinstance(message, Drop) and message.id == node.id
        return dropped and leader_term is not None and leader_term.leased and now < leader_term.lease_until

    def _dial(self, host: Host, epoch: int, target: int) -> None:
        if host.node is None or host.epoch != epoch:
            return
        other = self.hosts[target]
        if other.node is None or self.network.is_split(host.index, target):
            self.call(host, Node.tick)
            return
        end = self.network.connect(host.index, target)
        self._open(other, end.other, None)
        self._open(host, end, str(target))

    def _open(self, host: Host, end: End, target: str | None) -> None:
        origin = "" if target is not None else f"10.0.0.{end.other.host}"
        opened = partial(Node.link_opened, target=target, origin=origin)
        self.call(host, opened, end.number)

    def _close(self, end: End | None) -> None:
        """Close one side of a link; the other side learns it when it can be reached."""
        if end is not None and end.open:
            end.open = False
            self.at(self.network.last_arrival(end, self.now), self._closed, end.other)

    def _closed(self, end: End) -> None:
        host = self.hosts[end.host]
        if not end.open or host.node is None:
            return
        if self.network.is_split(end.host, end.other.host):
            self.at(self.now + 1.0, self._closed, end)
            return
        end.open = False
        self.call(host, Node.link_closed, end.number)

    def cut_links(self) -> None:
        """Break all links."""
        for end in self.network.open_ends():
            self._close(end)
            host = self.hosts[end.host]
            if host.node is not None:
                self.call(host, Node.link_closed, end.number)

    # IRC.

    def _irc_connected(self, host: Host, epoch: int) -> None:
        if host.node is None or host.epoch != epoch or not self.checker.holds_irc(host.index):
            return
        if self.rng.random() < IRC_FAILS:
            self.lose_irc(host)
        else:
            self.call(host, Node.irc_connected)

    def lose_irc(self, host: Host) -> None:
        """Break a node's connection to IRC."""
        self.checker.off_irc(host.index)
        self.call(host, Node.irc_lost)

    # Trace.

    def log(self, text: str) -> None:
        """Write a line of the trace."""
        if self._trace is not None:
            self._trace(f"{self.now:9.3f} {text}")

    def _log_effect(self, host: Host, effect: Effect) -> None:
        match effect:
            case effects.RoleChanged():
                self.log(f"node {host.index} is {effect.role.name} in term {effect.term} of {effect.leader}")
            case effects.LeaveIrc():
                self.log(f"node {host.index} leaves IRC: {effect.reason}")
            case effects.Persist():
                self.log(f"node {host.index} writes: {_shown(effect.stored)}")
            case _:
                self.log(f"node {host.index} {effect}")


def _shown(stored: StoredNode) -> str:
    return f"voter {stored.voter}, term {stored.term}, pledge {stored.pledge}, electorate {stored.electorate}"
