"""Lets a scenario happen to real nodes, in virtual time.

Everything that is random comes from the scenario's seed: the same scenario is the same run, to the last message.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, Final

from hydra.protocol.codec import MAX_ID, encode
from hydra.protocol.effects import (
    Changed,
    CloseLink,
    ConnectIrc,
    Deliver,
    Dial,
    Effect,
    LeaveIrc,
    Persist,
    Stored,
    Transmit,
)
from hydra.protocol.electorate import Electorate
from hydra.protocol.messages import Drop
from hydra.protocol.node import Node, new_stored
from hydra.protocol.roles import Role
from hydra.protocol.termtime import LEADER_LEAVES
from hydra.protocol.times import Times
from hydra.simulator.checker import BOUNDED, LEADER_FOUND, LEADER_STAYS, Checker
from hydra.simulator.holes import StoppedClock
from hydra.simulator.network import End, Network
from hydra.simulator.scenario import Fault, Kind, Scenario

PATIENCE: Final = 45.0
"""Seconds after healing in which a leader must be found."""
SETTLING: Final = 6.0
"""Seconds that a run goes on with the leader found."""
MESSAGES: Final = 100
"""Messages that a node may send in a second, on average."""
DIAL_TIME: Final = (0.001, 0.1)
IRC_TIME: Final = (0.1, 1.0)
IRC_FAILS: Final = 0.1
LINE_EVERY: Final = 3.0
SEND_EVERY: Final = 2.0

Trace = Callable[[str], None]


class Host:
    """What a node runs on: its disk, its clock, and whether it is up."""

    __slots__ = (
        "disk", "epoch", "index", "lag", "node", "position", "rate", "still_since", "targets", "timers_stop", "waiting",
        "wake_at", "writes",
    )  # fmt: skip

    def __init__(self, index: int, disk: Stored, rate: float, targets: tuple[str, ...]) -> None:
        self.index = index
        self.disk = disk
        self.rate = rate
        self.targets = targets
        self.node: Node | None = None
        self.epoch = 0
        """Counts its starts: what was begun for an earlier one is void."""
        self.position: tuple[int, int] | None = None
        self.wake_at = float("inf")
        self.writes: dict[int, Stored] = {}
        """What is on its way to the disk."""
        self.still_since: float | None = None
        """Since when it stands still; None while it does not."""
        self.timers_stop = False
        """Whether its timers stand still with it."""
        self.waiting: list[tuple[Callable[..., list[Effect]], tuple[Any, ...]]] = []
        """What has happened to it meanwhile."""
        self.lag = 0.0
        """Seconds that its clock has stood still altogether."""

    @property
    def up(self) -> bool:
        """Whether a node runs, and is not standing still."""
        return self.node is not None and self.still_since is None


class World:
    """One run."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        node_class: type[Node] = Node,
        times: Times | None = None,
        trace: Trace | None = None,
        only: str | None = None,
    ) -> None:
        self.scenario = scenario
        self.rng = Random(f"world {scenario.seed}")
        self.times = times or Times()
        self.now = 0.0
        self.events = 0
        self.messages = 0
        self.checker = Checker(only)
        self.network = Network(scenario, self.rng)
        self.trace = trace
        self.quiet = False
        """Whether nobody says anything, on IRC or to it."""
        self.found_after: float | None = None
        """Seconds from healing to a leader with its lease, or None."""
        self._node_class = node_class
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._healed_at: float | None = None
        self._stop_at = float("inf")
        self._names = 0
        self.hosts = self._hosts()

    def _hosts(self) -> list[Host]:
        scenario = self.scenario
        disks = [new_stored(self.rng) for _ in range(scenario.nodes)]
        if scenario.voters:
            formed = disks[: scenario.voters]
            electorate = Electorate(1, scenario.voters, frozenset(disk.voter for disk in formed))
            disks[: scenario.voters] = [Stored(disk.voter, 1, None, electorate) for disk in formed]
        rates = scenario.rates or (1.0,) * scenario.nodes
        return [
            Host(index, disks[index], rates[index], tuple(str(b) for a, b in scenario.links if a == index))
            for index in range(scenario.nodes)
        ]

    # Time.

    def at(self, time: float, action: Callable[..., None], *args: Any) -> None:
        """Have something happen at a time."""
        self._count += 1
        heapq.heappush(self._heap, (time, self._count, action, args))

    def _after(self, span: tuple[float, float], action: Callable[..., None], *args: Any) -> None:
        self.at(self.now + self.rng.uniform(*span), action, *args)

    def run(self) -> World:
        """Let everything happen. Raises Violation when a promise is broken."""
        for host in self.hosts:
            founds = not self.scenario.voters and host.index == 0
            self.at(0.0 if founds else self.rng.uniform(0, 2), self._start, host, founds)
        for fault in self.scenario.faults:
            self.at(fault.at, self.fault, fault)
        self.at(self.scenario.end, self._heal, True)
        if not self.quiet:
            self.at(self.rng.expovariate(1 / LINE_EVERY), self._irc_line)
            self.at(self.rng.expovariate(1 / SEND_EVERY), self._submit)
        heap = self._heap
        while heap:
            time, _, action, args = heapq.heappop(heap)
            if time > self._stop_at:
                break
            self.now = self.checker.now = time
            self.events += 1
            action(*args)
            if self.messages > MESSAGES * len(self.hosts) * (time + 10):
                self.checker.fail(BOUNDED, f"{self.messages} messages")
        return self

    def stop(self) -> None:
        """Let nothing more happen after this moment."""
        self._stop_at = self.now

    # Nodes.

    def _start(self, host: Host, founds: bool = False) -> None:
        if host.node is not None:
            return
        host.epoch += 1
        self._say(f"node {host.index} starts: {_shown(host.disk)}")
        host.node = self._node_class(
            name=f"n{host.index}",
            times=self.times,
            rng=Random(self.rng.getrandbits(64)),
            stored=host.disk,
            now=self._local(host),
            targets=host.targets,
            founder=founds,
            position=host.position,
        )
        self._handle(host, host.node.start(self._local(host)))

    def _local(self, host: Host) -> float:
        return 1000.0 * host.index + self.now * host.rate - host.lag

    def call(self, host: Host, event: Callable[..., list[Effect]], *args: Any) -> None:
        """Have a node handle an event, now or when it goes on."""
        if host.still_since is not None:
            host.waiting.append((event, args))
            return
        self._handle(host, event(host.node, self._local(host), *args))

    def _handle(self, host: Host, effects: list[Effect]) -> None:
        node = host.node
        assert node is not None
        for effect in effects:
            self.checker.effect(host.index, node, effect)
            self._carry_out(host, effect)
        self.checker.after_event(host.index, node)
        if self._healed_at is not None and self.found_after is None:
            self._look_for_leader(node)
        self._schedule(host, node)

    def _schedule(self, host: Host, node: Node) -> None:
        due = max((node.deadline - 1000.0 * host.index + host.lag) / host.rate, self.now)
        if due < host.wake_at:
            host.wake_at = due
            self.at(due + 1e-6, self._wake, host, host.epoch, due)

    def _wake(self, host: Host, epoch: int, due: float) -> None:
        if host.node is None or host.epoch != epoch or host.wake_at != due or host.still_since is not None:
            return
        host.wake_at = float("inf")
        if host.node.deadline <= self._local(host):
            self.call(host, Node.tick)
        else:
            self._schedule(host, host.node)

    def _look_for_leader(self, node: Node) -> None:
        reign = node.termtime.reign
        if node.role is Role.LEADING and reign is not None and reign.leased and self._healed_at is not None:
            self.found_after = self.now - self._healed_at
            self._stop_at = self.now + SETTLING

    def _carry_out(self, host: Host, effect: Effect) -> None:
        match effect:
            case Transmit():
                self._transmit(host, effect)
            case Persist():
                host.writes[effect.number] = effect.stored
                self._after(self.scenario.disk, self._written, host, host.epoch, effect.number)
            case Dial():
                self._after(DIAL_TIME, self._dial, host, host.epoch, int(effect.target))
            case CloseLink():
                self._close(self.network.end(effect.link))
            case ConnectIrc():
                self._after(IRC_TIME, self._irc_connected, host, host.epoch)
            case Deliver():
                host.position = (effect.term, effect.idx)
            case _:
                pass
        if self.trace is not None and not isinstance(effect, Transmit):
            self._trace(host, effect)

    def _written(self, host: Host, epoch: int, number: int) -> None:
        if host.node is None or host.epoch != epoch or number not in host.writes:
            return
        for each in [each for each in host.writes if each <= number]:
            host.disk = host.writes.pop(each)
            self.checker.written(host.disk)
        self.call(host, Node.persisted, number)

    # Links.

    def _transmit(self, host: Host, effect: Transmit) -> None:
        message = effect.message
        for number in effect.links:
            end = self.network.end(number)
            if end is None:
                continue
            self.messages += 1
            for time in self.network.arrivals(end, self.now):
                self.at(time, self._arrive, end, message)

    def _arrive(self, end: End, message: Any) -> None:
        other = end.other
        host = self.hosts[other.host]
        if host.node is None or not other.open or self.network.is_split(end.host, other.host):
            return
        if self.trace is not None:
            self._say(f"node {host.index} <- {end.host}: {encode(message, attributes=True).decode().rstrip()}")
        leads_on = self._must_lead_on(host.node, message, self._local(host)) and host.still_since is None
        self.call(host, Node.message_received, other.number, message)
        if leads_on and host.node.role is not Role.LEADING:
            self.checker.fail(LEADER_STAYS, f"node {host.index} is {host.node.role.name} after {message}")

    @staticmethod
    def _must_lead_on(node: Node, message: Any, now: float) -> bool:
        reign = node.termtime.reign
        dropped = isinstance(message, Drop) and message.id == node.id
        return dropped and reign is not None and reign.leased and now < reign.lease_until

    def _dial(self, host: Host, epoch: int, target: int) -> None:
        if host.node is None or host.epoch != epoch:
            return
        other = self.hosts[target]
        if other.node is None or self.network.is_split(host.index, target):
            self.call(host, Node.dial_failed, str(target))
            return
        end = self.network.connect(host.index, target)
        self._open(other, end.other, None)
        self._open(host, end, str(target))

    def _open(self, host: Host, end: End, target: str | None) -> None:
        origin = "" if target is not None else f"10.0.0.{end.other.host}"
        opened = partial(Node.link_opened, target=target, origin=origin)
        self.call(host, opened, end.number)

    def _close(self, end: End | None) -> None:
        """One side closes a link; the other learns it, when it can be reached."""
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

    # IRC.

    def _irc_connected(self, host: Host, epoch: int) -> None:
        if host.node is None or host.epoch != epoch or not self.checker.holds_irc(host.index):
            return
        if self.rng.random() < IRC_FAILS:
            self._irc_lost(host)
        else:
            self.call(host, Node.irc_connected)

    def _irc_lost(self, host: Host) -> None:
        self.checker.off_irc(host.index)
        self.call(host, Node.irc_lost)

    def _irc_line(self) -> None:
        self.at(self.now + self.rng.expovariate(1 / LINE_EVERY), self._irc_line)
        holder = self.checker.on_irc
        if holder is not None:
            self._names += 1
            self.call(self.hosts[holder], Node.irc_line, f":x!y@z PRIVMSG #c :{self._names}")

    def _submit(self) -> None:
        self.at(self.now + self.rng.expovariate(1 / SEND_EVERY), self._submit)
        host = self.rng.choice(self.hosts)
        if host.up:
            self._names += 1
            self.call(host, Node.submit, f"m{self._names}", f"PRIVMSG #c :{self._names}")

    # Faults.

    def fault(self, fault: Fault) -> None:
        """Do something to the network, now."""
        self._say(str(fault))
        match fault.kind:
            case Kind.CRASH | Kind.LOSE | Kind.CRASH_LEADER:
                for host in self._hit(fault):
                    self._crash(host, lose=fault.kind is Kind.LOSE)
            case Kind.LEAVE:
                for host in self._hit(fault):
                    if host.up:
                        self._leave(host)
                    else:  # it does not hear that it is to stop
                        self._crash(host, lose=False)
            case Kind.PAUSE | Kind.SUSPEND | Kind.PAUSE_LEADER | Kind.SUSPEND_LEADER:
                stops = fault.kind in (Kind.SUSPEND, Kind.SUSPEND_LEADER)
                for host in self._hit(fault):
                    self._stand_still(host, stops=stops)
            case Kind.RESUME:
                for host in self.hosts:
                    self._go_on(host)
            case Kind.FORGE | Kind.GHOST:
                for host in self._hit(fault):
                    self._mislead(host, fault.kind)
            case Kind.RESTART:
                for index in fault.nodes:
                    self._start(self.hosts[index])
            case Kind.SPLIT:
                self.network.split(set(fault.nodes))
            case Kind.ISOLATE_LEADER:
                self.network.split({host.index for host in self._leaders()})
            case Kind.HEAL:
                self._heal(False)
            case Kind.CUT:
                for end in self.network.open_ends():
                    self._close(end)
                    self._closed_here(end)
            case Kind.IRC_LOST:
                if self.checker.on_irc is not None:
                    self._irc_lost(self.hosts[self.checker.on_irc])

    def _hit(self, fault: Fault) -> list[Host]:
        hosts = [self.hosts[index] for index in fault.nodes]
        if fault.kind in (Kind.CRASH_LEADER, Kind.PAUSE_LEADER, Kind.SUSPEND_LEADER):
            hosts = self._leaders()
        return [host for host in hosts if host.node is not None]

    def _leaders(self) -> list[Host]:
        return [host for host in self.hosts if host.node is not None and host.node.role is Role.LEADING]

    # Standing still.

    def _stand_still(self, host: Host, *, stops: bool) -> None:
        """With `stops` its timers stand still, and its clock too if that is one of CLOCK_MONOTONIC's kind."""
        if not host.up:
            return
        host.still_since = self.now
        host.timers_stop = stops
        self.checker.stands_still(host.index)

    def _go_on(self, host: Host) -> None:
        """What has come meanwhile is handled; a timer that was stopped goes off as much later."""
        since, host.still_since = host.still_since, None
        if since is None or host.node is None:
            return
        if host.timers_stop and issubclass(self._node_class, StoppedClock):
            host.lag += (self.now - since) * host.rate
        waiting, host.waiting = host.waiting, []
        for event, args in waiting:
            self.call(host, event, *args)
        wake = max(host.wake_at, since) + (self.now - since) * host.timers_stop
        host.wake_at = max(wake, self.now)
        self.at(host.wake_at + 1e-6, self._wake, host, host.epoch, host.wake_at)

    # Liars.

    def _mislead(self, host: Host, kind: Kind) -> None:
        """A member's neighbours hear that the leader is dropped and leaves; or one node knows a member of its own."""
        node = host.node
        assert node is not None
        if kind is Kind.GHOST:
            node.members.register(self.rng.randint(1, MAX_ID), f"{self.rng.getrandbits(64):016x}", self._local(host))
            return
        if node.leader is None or node.role is Role.LEADING:
            return
        for reason in ("forged", LEADER_LEAVES):
            for proof in (None, f"{self.rng.getrandbits(128):032x}"):
                forged = Transmit(node.core.links.joined, Drop(node.leader, reason, proof), attributes=True)
                self._transmit(host, forged)

    def _crash(self, host: Host, *, lose: bool) -> None:
        """A node dies. Of the writes on their way any first part may have reached the disk."""
        numbers = sorted(host.writes)
        for number in numbers[: self.rng.randint(0, len(numbers))]:
            host.disk = host.writes[number]
            self.checker.written(host.disk)
        if lose:
            host.disk = new_stored(self.rng)
            host.position = None
            self.checker.lost_disk(host.index)
        self._gone(host)

    def _leave(self, host: Host) -> None:
        assert host.node is not None
        self._handle(host, host.node.leave(self._local(host)))
        for number in sorted(host.writes):
            host.disk = host.writes[number]
            self.checker.written(host.disk)
        self._gone(host)

    def _gone(self, host: Host) -> None:
        host.node = None
        host.still_since = None
        host.waiting.clear()
        host.writes.clear()
        host.wake_at = float("inf")
        self.checker.off_irc(host.index)
        for end in self.network.open_ends():
            if end.host == host.index:
                self._close(end)

    def _closed_here(self, end: End) -> None:
        host = self.hosts[end.host]
        if host.node is not None:
            self.call(host, Node.link_closed, end.number)

    def _heal(self, last: bool) -> None:
        self.network.heal(for_good=last)
        if last:
            self._healed_at = self.now
            self._say("healed")
            self.at(self.now + PATIENCE, self._give_up)
        for host in self.hosts:
            self._go_on(host)
            self._start(host)
            if last and host.node is not None:
                self._look_for_leader(host.node)

    def _give_up(self) -> None:
        if self.found_after is None and self.can_have_leader():
            self.checker.fail(LEADER_FOUND, f"none in {PATIENCE:g} s")
        self._stop_at = min(self._stop_at, self.now + SETTLING)

    def can_have_leader(self) -> bool:
        """Whether a majority of the newest electorate has its disks; without them nobody can lead ever again."""
        known = [host.node.electorate if host.node is not None else host.disk.electorate for host in self.hosts]
        electorates = [electorate for electorate in known if electorate is not None]
        newest = max(electorates, key=lambda electorate: electorate.stamp, default=None)
        return newest is not None and newest.agrees(host.disk.voter for host in self.hosts)

    # Trace.

    def _say(self, text: str) -> None:
        if self.trace is not None:
            self.trace(f"{self.now:9.3f} {text}")

    def _trace(self, host: Host, effect: Effect) -> None:
        match effect:
            case Changed():
                self._say(f"node {host.index} is {effect.role.name} in term {effect.term} of {effect.leader}")
            case LeaveIrc():
                self._say(f"node {host.index} leaves IRC: {effect.reason}")
            case Persist():
                self._say(f"node {host.index} writes: {_shown(effect.stored)}")
            case _:
                self._say(f"node {host.index} {effect}")


def _shown(stored: Stored) -> str:
    return f"voter {stored.voter}, term {stored.term}, pledge {stored.pledge}, electorate {stored.electorate}"
