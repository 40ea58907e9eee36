"""The torture of a Patroni cluster, as far as it needs none: its nodes' configuration, its faults, its report."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from brokersite.rigs.torture.database import TortureDatabase
from brokersite.rigs.torture.faults import Tormentor
from brokersite.rigs.torture.history import InjectedFault, InjectedFaultKind, MessageId, Publish, RunHistory
from tests.rigs.cluster.__main__ import ROUND, recoveries
from tests.rigs.cluster.faults import ClusterFaults
from tests.rigs.cluster.patroni import CONFIGURATION, MODES, PatroniCluster

#: What the nodes on loopback have of their own; all else is as in the documentation.
OWN = {"name", "etcd3", "restapi", "watchdog"}
OF_POSTGRESQL = {"listen", "connect_address", "data_dir", "bin_dir", "pg_hba", "parameters", "authentication"}


@pytest.mark.parametrize("mode", MODES)
def test_the_cluster_that_is_tortured_is_the_one_of_the_page(tmp_path: Path, mode: str) -> None:
    page: dict[str, Any] = yaml.safe_load(CONFIGURATION.read_text())
    cluster = PatroniCluster(tmp_path, mode, Path("patroni"))
    try:
        for node in cluster.nodes:
            options = yaml.safe_load((cluster.root / node.name / "patroni.yml").read_text())
            assert {key for key in page if options[key] != page[key]} <= OWN | {"postgresql", "bootstrap"}
            changed = {key for key, value in options["postgresql"].items() if page["postgresql"].get(key) != value}
            assert changed <= OF_POSTGRESQL
            given, wanted = options["bootstrap"].pop("dcs"), page["bootstrap"]["dcs"]
            assert (given.pop("synchronous_mode"), given.pop("synchronous_mode_strict")) == {
                "on": (True, False), "strict": (True, True), "quorum": ("quorum", True)
            }[mode]  # fmt: skip
            assert given == {key: value for key, value in wanted.items() if not key.startswith("synchronous")}
    finally:
        cluster.remove()


def test_each_fault_of_a_round_can_be_done_and_is_noted(tmp_path: Path) -> None:
    cluster = PatroniCluster(tmp_path, "strict", Path("patroni"))
    try:
        acts = ClusterFaults(cluster, random.Random(1)).acts
        own = Tormentor(TortureDatabase(tmp_path), [], RunHistory(), random.Random(1), {})._acts
        assert set(ROUND) <= acts.keys() | own.keys()
        assert not acts.keys() & own.keys()
        history, done = RunHistory(), []
        more = {kind: lambda kind=kind: done.append(kind) for kind in acts}
        tormentor = Tormentor(cluster, [], history, random.Random(1), more)
        for kind in acts:
            tormentor.strike(kind)
        assert done == [fault.kind for fault in history.faults] == list(acts)
    finally:
        cluster.remove()


def test_the_report_has_the_longest_pause_without_a_confirm_of_each_kind_of_fault() -> None:
    publishes = [
        Publish(MessageId("p", n), 0.0, confirmed) for n, confirmed in enumerate((9.0, 10.5, None, 13.0, 13.1, 16.0))
    ]
    faults = [
        InjectedFault(InjectedFaultKind.SWITCHOVER, begin, end) for begin, end in ((10.0, 11.0), (10.0, 13.0), (13, 15))
    ]
    (line,) = recoveries(RunHistory(publishes, [], faults))
    assert line.split("  ", 1)[0] == "switchover to a standby:"
    assert line.endswith("   3  no confirm for 2.5 s (median), 2.9 s (longest)")
    (never,) = recoveries(RunHistory(publishes, [], [InjectedFault(InjectedFaultKind.ETCD_AWAY, 99.0, 100.0)]))
    assert never.endswith("no confirm for inf s (median), inf s (longest)")
