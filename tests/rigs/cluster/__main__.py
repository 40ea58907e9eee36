"""``python -m tests.rigs.cluster``: torture on a Patroni cluster; exit status 0 if no promise was broken."""

from __future__ import annotations

import argparse
import math
import random
import statistics
import tempfile
from bisect import bisect
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

from brokersite.rigs.torture.history import InjectedFaultKind, RunHistory
from brokersite.rigs.torture.runner import Run, TorturePlan, describe
from queues.management.shell import ended_by_sigterm
from tests.rigs.cluster.faults import ClusterFaults
from tests.rigs.cluster.patroni import MODES, PatroniCluster

#: Faults of each round; the first ones end most of Patroni's leaders.
ROUND = {
    InjectedFaultKind.SWITCHOVER: 2,
    InjectedFaultKind.PRIMARY_LOST: 2,
    InjectedFaultKind.PRIMARY_FROZEN: 1,
    InjectedFaultKind.PATRONI_KILLED: 1,
    InjectedFaultKind.STANDBY_LOST: 2,
    InjectedFaultKind.STANDBY_REBUILT: 1,
    InjectedFaultKind.ETCD_AWAY: 1,
    InjectedFaultKind.DATABASE_KILL: 2,
    InjectedFaultKind.KILL: 2,
    InjectedFaultKind.CUT: 1,
}


def recoveries(history: RunHistory) -> list[str]:
    """For each kind of fault: how many there were, and the longest time without a confirm that each has caused."""
    confirmed = sorted(each.confirmed for each in history.publishes if each.confirmed is not None)
    pauses = defaultdict(list)
    for fault in history.faults:
        first, last = bisect(confirmed, fault.begin), bisect(confirmed, fault.end)
        moments = [fault.begin, *confirmed[first : last + 1]]  # up to the first one after it
        pauses[fault.kind].append(max((after - before for before, after in pairwise(moments)), default=math.inf))
    return [
        f"{f'{kind.value}:':<48}{len(found):>4}  no confirm for {statistics.median(found):.1f} s (median), "
        f"{max(found):.1f} s (longest)"
        for kind, found in sorted(pauses.items())
    ]  # fmt: skip


def main() -> int:
    """Run it as the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=MODES, default="strict", help="synchronous mode (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=1, help=f"rounds of {sum(ROUND.values())} faults each")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--seconds", type=float, default=7200.0, help="the most that the faults may take")
    parser.add_argument("--patroni", type=Path, help="an installed Patroni that an unprivileged user can run")
    parser.add_argument("--keep", action="store_true", help="keep the data and logs")
    options = parser.parse_args()
    data_dir = Path(tempfile.mkdtemp(prefix="fivewire-cluster-"))
    print(f"seed {options.seed}, data in {data_dir}", flush=True)
    plan = TorturePlan(
        seed=options.seed, seconds=options.seconds, rest=(1.0, 5.0),
        faults={kind: count * options.rounds for kind, count in ROUND.items()},
    )  # fmt: skip
    cluster = PatroniCluster(data_dir, options.mode, options.patroni)
    keep = True
    try:
        with ended_by_sigterm():
            cluster.start()
            faults = ClusterFaults(cluster, random.Random(options.seed))
            report = Run(cluster, plan, lambda line: print(line, flush=True), faults.acts).run()
        print(*describe(report), *recoveries(report.history), sep="\n", flush=True)
        keep = options.keep or not report.passed
        return 0 if report.passed else 1
    finally:
        if keep:
            cluster.stop()
        else:
            cluster.remove()


if __name__ == "__main__":
    raise SystemExit(main())
