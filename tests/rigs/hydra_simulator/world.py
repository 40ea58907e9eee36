"""Runs a scenario on a cluster of real nodes, in virtual time.

All random numbers come from the scenario's seed: the same scenario is the same run, to the last message.
"""

from __future__ import annotations

from typing import Any, Final

from hydra.protocol.codec import MAX_ID
from hydra.protocol.effects import Transmit
from hydra.protocol.heartbeat import LEADER_LEAVES
from hydra.protocol.messages import Drop
from hydra.protocol.node import Node
from hydra.protocol.roles import Role
from tests.rigs.hydra_simulator.checker import BOUNDED, LEADER_FOUND
from tests.rigs.hydra_simulator.cluster import Cluster
from tests.rigs.hydra_simulator.host import Host
from tests.rigs.hydra_simulator.scenario import FaultKind, Scenario, ScenarioFault

#: Seconds after healing in which a leader must be found.
PATIENCE: Final = 45.0
#: Seconds that a run goes on with the leader found.
SETTLING: Final = 6.0
#: Messages that a node may send in a second, on average.
MESSAGES: Final = 100
LINE_EVERY: Final = 3.0
SEND_EVERY: Final = 2.0


class World(Cluster):
    """One run."""

    def __init__(self, scenario: Scenario, *, quiet: bool = False, **options: Any) -> None:
        """A `quiet` run has no lines from IRC or to IRC; the other options are those of `Cluster`."""
        super().__init__(scenario, **options)
        #: Seconds from healing to a leader with its lease, or None.
        self.found_after: float | None = None
        self._quiet = quiet
        self._healed_at: float | None = None
        self._names = 0

    def run(self) -> World:
        """Run the scenario. Raises Violation when a promise is broken."""
        for host in self.hosts:
            founds = not self.scenario.voters and host.index == 0
            self.at(0.0 if founds else self.rng.uniform(0, 2), self.start, host, founds)
        for fault in self.scenario.faults:
            self.at(fault.at, self.fault, fault)
        self.at(self.scenario.end, self._heal, True)
        if not self._quiet:
            self.at(self.rng.expovariate(1 / LINE_EVERY), self._irc_line)
            self.at(self.rng.expovariate(1 / SEND_EVERY), self._submit)
        for step in self.steps():
            self.checker.now = self.now
            step()
            if self.messages > MESSAGES * len(self.hosts) * (self.now + 10):
                self.checker.fail(BOUNDED, f"{self.messages} messages")
        return self

    # Lines.

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

    def fault(self, fault: ScenarioFault) -> None:
        """Carry out a fault now."""
        self.log(str(fault))
        match fault.kind:
            case FaultKind.RESTART:
                for index in fault.nodes:
                    self.start(self.hosts[index])
            case FaultKind.RESUME:
                for host in self.hosts:
                    self.go_on(host)
            case FaultKind.SPLIT:
                self.network.split(set(fault.nodes))
            case FaultKind.ISOLATE_LEADER:
                self.network.split({host.index for host in self.leaders()})
            case FaultKind.HEAL:
                self._heal(False)
            case FaultKind.CUT:
                self.cut_links()
            case FaultKind.IRC_LOST:
                if self.checker.on_irc is not None:
                    self.lose_irc(self.hosts[self.checker.on_irc])
            case _:
                for host in self._hit(fault):
                    self._fault_of_node(host, fault.kind)

    def _hit(self, fault: ScenarioFault) -> list[Host]:
        hosts = [self.hosts[index] for index in fault.nodes]
        if fault.kind in (FaultKind.CRASH_LEADER, FaultKind.PAUSE_LEADER, FaultKind.SUSPEND_LEADER):
            hosts = self.leaders()
        return [host for host in hosts if host.node is not None]

    def _fault_of_node(self, host: Host, kind: FaultKind) -> None:
        match kind:
            case FaultKind.CRASH | FaultKind.LOSE | FaultKind.CRASH_LEADER:
                self.crash(host, lose=kind is FaultKind.LOSE)
            case FaultKind.LEAVE if host.up:
                self.leave(host)
            case FaultKind.LEAVE:  # it stands still, and gets no signal
                self.crash(host, lose=False)
            case FaultKind.PAUSE | FaultKind.SUSPEND | FaultKind.PAUSE_LEADER | FaultKind.SUSPEND_LEADER:
                self.stand_still(host, timers_stop=kind in (FaultKind.SUSPEND, FaultKind.SUSPEND_LEADER))
            case FaultKind.FORGE | FaultKind.GHOST:
                self._mislead(host, kind)

    def _mislead(self, host: Host, kind: FaultKind) -> None:
        """FORGE: a member tells its neighbours that the leader is dropped. GHOST: it knows a member that is none."""
        node = host.node
        assert node is not None
        if kind is FaultKind.GHOST:
            key = self.rng.randint(1, MAX_ID), f"{self.rng.getrandbits(64):016x}"
            node.members.register(*key, host.local(self.now))
            return
        if node.leader is None or node.role is Role.LEADING:
            return
        for reason in ("forged", LEADER_LEAVES):
            for proof in (None, f"{self.rng.getrandbits(128):032x}"):
                drop = Drop(node.leader, reason, proof)
                self.transmit(Transmit(node.core.links.joined, drop, attributes=True))

    # Healing.

    def _heal(self, last: bool) -> None:
        self.network.heal(for_good=last)
        if last:
            self._healed_at = self.now
            self.log("healed")
            self.at(self.now + PATIENCE, self._give_up)
        for host in self.hosts:
            self.go_on(host)
            self.start(host)
            if last and host.node is not None:
                self.handled(host.node)

    def handled(self, node: Node) -> None:
        if self._healed_at is not None and self.found_after is None and node.has_lease:
            self.found_after = self.now - self._healed_at
            self.stop_at(self.now + SETTLING)

    def _give_up(self) -> None:
        if self.found_after is None and self.can_have_leader():
            self.checker.fail(LEADER_FOUND, f"none in {PATIENCE:g} s")
        self.stop_at(self.now + SETTLING)

    def can_have_leader(self) -> bool:
        """Whether a majority of the newest electorate has its disks; else there will never be a leader again."""
        known = [host.node.electorate if host.node is not None else host.disk.electorate for host in self.hosts]
        electorates = [electorate for electorate in known if electorate is not None]
        newest = max(electorates, key=lambda electorate: electorate.stamp, default=None)
        return newest is not None and newest.agrees(host.disk.voter for host in self.hosts)
