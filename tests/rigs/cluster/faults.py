"""Faults of a cluster. After each one the cluster is whole again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack

from brokersite.rigs.torture.history import InjectedFaultKind
from queues.etl.job.pacing import stopped
from tests.rigs.cluster.patroni import HEALTHY, LOOK, Node, PatroniCluster

#: Seconds that a standby stays away, and etcd: longer than Patroni's ttl.
AWAY, ETCD_AWAY = (1.0, 5.0), 25.0


class ClusterFaults:
    """The faults of one cluster, by kind in `acts`."""

    def __init__(self, cluster: PatroniCluster, source: random.Random) -> None:
        self._cluster = cluster
        self._random = source
        self.acts: Mapping[InjectedFaultKind, Callable[[], None]] = {
            InjectedFaultKind.SWITCHOVER: self._switch_over,
            InjectedFaultKind.PRIMARY_LOST: self._lose_primary,
            InjectedFaultKind.PRIMARY_FROZEN: self._freeze_primary,
            InjectedFaultKind.PATRONI_KILLED: self._kill_patroni,
            InjectedFaultKind.STANDBY_LOST: self._lose_standby,
            InjectedFaultKind.STANDBY_REBUILT: self._rebuild_standby,
            InjectedFaultKind.ETCD_AWAY: self._take_etcd,
        }

    def _switch_over(self) -> None:
        leader = self._cluster.wait_healthy()
        leader.ask("switchover", {"leader": leader.name})
        self._wait_replaced(leader)
        self._cluster.wait_healthy()

    def _lose_primary(self) -> None:
        leader = self._cluster.leader()
        leader.kill()
        self._wait_replaced(leader)
        leader.start()
        self._cluster.wait_healthy()

    def _freeze_primary(self) -> None:
        leader = self._cluster.leader()
        with stopped(leader.processes()):
            self._wait_replaced(leader)
        self._cluster.wait_healthy()

    def _kill_patroni(self) -> None:
        leader = self._cluster.leader()
        leader.kill_patroni()
        self._wait_replaced(leader)
        time.sleep(self._random.uniform(*AWAY))  # two servers take writes
        leader.start()
        self._cluster.wait_healthy()

    def _lose_standby(self) -> None:
        with ExitStack() as stack:
            for node in self._random.sample(self._standbys(), self._random.choice((1, 2))):
                node.kill()
                stack.callback(node.start)
            time.sleep(self._random.uniform(*AWAY))
        self._cluster.wait_healthy()

    def _rebuild_standby(self) -> None:
        node = self._random.choice(self._standbys())
        node.kill()
        node.forget()
        node.start()
        self._cluster.wait_healthy()

    def _take_etcd(self) -> None:
        with self._cluster.etcd_away():
            time.sleep(ETCD_AWAY)
        self._cluster.wait_healthy()

    def _standbys(self) -> list[Node]:
        leader = self._cluster.wait_healthy()
        return [node for node in self._cluster.nodes if node is not leader]

    def _wait_replaced(self, former: Node) -> None:
        """Wait until another node is the primary. Raises TimeoutError."""
        deadline = time.monotonic() + HEALTHY
        while not any(node.leads for node in self._cluster.nodes if node is not former):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{former.name} is not replaced after {HEALTHY:.0f} s")
            time.sleep(LOOK)
