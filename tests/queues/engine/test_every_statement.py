"""Every statement of the engine fails once in the middle of what users do: only the unit concerned suffers.

It fails by an error that a repetition helps against or by an unforeseen one, in turn; in the long form by both. The
table tells which scenario runs which statement; a statement that is in none fails a test.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from queues.operations.keys import create_key
from tests.lengths import lengths
from tests.queues.engine import scenarios
from tests.queues.engine.conftest import MakeEngine, Store
from tests.queues.engine.faults import UNFORESEEN, Faults
from tests.queues.engine.named import STATEMENTS
from tests.queues.engine.scenarios import World
from tests.waiting import PATIENCE

pytestmark = pytest.mark.django_db(transaction=True)

DEADLOCK = "40P01"
Scenario = Callable[[World], Awaitable[None]]

#: Users' scenarios, and the statements that the engine runs for each.
RUN_BY: dict[Scenario, str] = {
    scenarios.publishing: "resolve topology_changes policies publish_one publish publish_detailed admit audit_waiting"
    " audit_head audit_take audit_append key_names",
    scenarios.overflowing: "unpack_ready drop_oldest oldest_ids",
    scenarios.consuming: "claim_alone claim claim_dead add_interest queue_id",
    scenarios.taking_turns: "join_lines active_consumers leave_lines",
    scenarios.narrowing: "first_ready set_aside",
    scenarios.narrowing_letters: "first_ready set_aside",
    scenarios.settling: "settle",
    scenarios.settling_without_archive: "settle",
    scenarios.settling_audited: "settle",
    scenarios.finishing_jobs: "settle",
    scenarios.packing: "publish_segment settle_segments unpack_segments",
    scenarios.rotating: "publish_leased settle_single unpack_slot slot_segments rotate_segments rotate_tallies"
    " slot_bytes",
    scenarios.late: "lock_late unpack_late",
    scenarios.returning: "return bury_elsewhere",
    scenarios.purging: "remove",
    scenarios.subscribing: "count_subscriptions subscribe subscription take_tags find_tags",
    scenarios.peers: "take_mailboxes connected_names hold_mailboxes store_letters claim_letters"
    " settle find_letters see_letters publish_routed unsee_letters leave_mailboxes",
    scenarios.telling: "instruct take_instructions drop_instructions served_elsewhere",
    scenarios.by_the_clock: "promote_due next_due due_ids expire expired_ids fold_tallies tallied_queues"
    " make_partitions drop_partitions drop_old_log_lines drop_idle_subscriptions warn_idle_subscriptions"
    " forget_letters touch_subscriptions"
    " look_below unseen drop_interest idle_subscription_ids",
    scenarios.serving_many: "unseen_of_many",
    scenarios.nodes: "dead_nodes end_silent end_frozen release_segments unpack_node node_segments reap_leases"
    " leased_ids close_mailboxes forget_node",
    scenarios.logging_in: "key key_named keys note_key_uses",
    scenarios.asking: "ensure_queue find_key write_workers",
    scenarios.watching: "write_connections",
    scenarios.routing: "tally_routes fold_routes fold_dead_letters",
    scenarios.stalling: "waits_for",
    scenarios.reconnecting: "history register_node end_sessions move_ids move_tags note_history are_stored",
    scenarios.losing_a_commit: "audit_has",
    scenarios.stopping: "any_leased",
}
#: Scenarios in which the engine loses its connections.
RESTARTING = {scenarios.reconnecting, scenarios.losing_a_commit}
#: Statements that run only after another one has failed.
AFTER = {
    "due_ids": "promote_due", "expired_ids": "expire", "tallied_queues": "fold_tallies", "leased_ids": "reap_leases",
    "node_segments": "unpack_node",
    "drop_instructions": "take_instructions", "idle_subscription_ids": "drop_idle_subscriptions",
    "oldest_ids": "drop_oldest", "slot_segments": "unpack_slot",
}  # fmt: skip
#: Statements that no fault is put into, and why.
SPARED: dict[str, str] = {}


#: Scenarios that need long: all of their statements fail in the same run.
LONG = RESTARTING | {scenarios.rotating, scenarios.by_the_clock, scenarios.nodes, scenarios.stopping}


def runs(scenario: Scenario) -> list[list[str]]:
    """The statements that are to fail in each run of a scenario."""
    names = RUN_BY[scenario].split()
    if scenario not in LONG:
        return [[name] for name in names]
    together = [name for name in names if name not in AFTER], [name for name in names if name in AFTER]
    return [names for names in together if names]


@pytest.fixture
def two_keys() -> list[tuple[int, str]]:
    return [(row.pk, text) for row, text in (create_key(name, publish=["*"]) for name in ("first", "second"))]


@pytest.fixture
async def world(
    make_engine: MakeEngine, store: Store, two_keys: list[tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> World:
    for name, seconds in {
        "cluster.periodic.SWEEP": 0.1, "cluster.tidying.UNSEEN": 0.2, "cluster.tidying.TOUCH": 0.5,
        "cluster.periodic.PARTITIONS": 0.1, "cluster.periodic.PARTITIONS_AGAIN": 0.1, "supervisor.STEADY_JOB": 0.05,
        "cluster.notifications.channel.UNTOLD": 0.1, "consume.interest.COLD": 0.3, "health.RESTARTS_WITHIN": 0.0,
        "grants.GRANTS": 0.1, "clients.LOOK": 0.05, "publish.route_tallies.WRITE": 0.05,
        "publish.route_tallies.FOLD": 0.05,
    }.items():  # fmt: skip
        monkeypatch.setattr(f"queues.engine.{name}", seconds)
    engine = await make_engine(mailboxes=True, idle_subscription_days=7, idle_subscription_notice=0, stall_timeout=0.2)
    store.queue("neighbour")
    [(first, text), (second, _)] = two_keys
    return World(make_engine, engine, store, Faults(monkeypatch), [first, second], text)


@pytest.mark.parametrize("errors", lengths(short="in turn", long="both"))
@pytest.mark.parametrize("scenario", RUN_BY, ids=lambda scenario: scenario.__name__)
async def test_a_statement_that_fails_once_costs_its_unit_and_no_more(
    world: World, scenario: Scenario, errors: str
) -> None:
    both = errors == "both" or scenario in LONG
    for number, names in enumerate(runs(scenario)):
        for state in (DEADLOCK, UNFORESEEN) if both else ((DEADLOCK, UNFORESEEN)[number % 2],):
            try:
                await fail_once(world, scenario, names, state)
            except BaseException as error:
                error.add_note(f"while {' '.join(names)} failed once by {state}")
                raise


async def fail_once(world: World, scenario: Scenario, names: list[str], state: str) -> None:
    """Run a scenario while these statements fail once each. The node is the same afterwards, a neighbour's messages
    went on, at most one unit was refused, and nothing is out of order any more."""
    faults, engines = world.faults, world.engines
    world.refused.clear()
    nodes = [(engine.node, engine.counts.reconnects) for engine in engines]
    faults.hits.clear()
    for name in names:
        if before := AFTER.get(name):
            faults.put(before, times=2)
        faults.put(name, state)
    async with asyncio.timeout(PATIENCE):
        await scenario(world)
        await world.neighbour_goes_on()
        while not all(faults.hits[name] for name in names):
            await world.neighbour_goes_on()
        faults.clear()
        await world.neighbour_goes_on()
        await world.store.until(
            lambda: not [reason for engine in engines for reason in engine.unready_reasons()], "all works again"
        )
    if scenario not in RESTARTING:
        assert [(engine.node, engine.counts.reconnects) for engine in engines] == nodes
    assert len(world.refused) <= 1, world.refused


def test_every_statement_has_a_scenario_or_a_reason() -> None:
    covered = [name for names in RUN_BY.values() for name in names.split()]
    assert set(covered) | set(SPARED) == set(STATEMENTS)
    assert not set(covered) & set(SPARED)
