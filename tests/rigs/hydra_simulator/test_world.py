"""The simulated world: the same seed is the same run, and faults do what they say."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from hydra.protocol.roles import Role
from tests.rigs.hydra_simulator.checker import Violation
from tests.rigs.hydra_simulator.scale import four_each, mesh
from tests.rigs.hydra_simulator.scenario import FaultKind, Scenario, ScenarioFault, draw_scenario, parse_scenario
from tests.rigs.hydra_simulator.world import World

THREE = Scenario(1, 3, mesh(3), voters=3, end=30.0)
PRINT_TRACE = "from tests.rigs.hydra_simulator.__main__ import main; main(['--seed', '7', '--trace'])"


def traced(scenario: Scenario) -> list[str]:
    lines: list[str] = []
    World(scenario, trace=lines.append).run()
    return lines


def test_the_same_seed_is_the_same_run_and_another_is_not() -> None:
    assert traced(THREE) == traced(THREE)
    assert traced(THREE) != traced(replace(THREE, seed=2))


def test_the_same_seed_is_the_same_run_in_another_process() -> None:
    runs = [
        subprocess.run(
            [sys.executable, "-c", PRINT_TRACE],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1]
    assert runs[0].count(b"\n") > 100


@pytest.mark.parametrize("seed", range(50))
def test_a_scenario_is_read_as_it_was_written(seed: int) -> None:
    scenario = draw_scenario(seed)
    assert parse_scenario("# a comment\n\n" + str(scenario)) == scenario


def test_an_invalid_scenario_is_refused() -> None:
    with pytest.raises(ValueError, match="no part of a scenario: 'moon full'"):
        parse_scenario(f"{THREE}moon full\n")
    with pytest.raises(ValueError, match="explode"):
        parse_scenario(f"{THREE}at 3 explode 1\n")


def leaders(world: World) -> list[int]:
    return [host.index for host in world.hosts if host.node is not None and host.node.role is Role.LEADING]


def test_three_nodes_have_one_leader_and_it_has_irc() -> None:
    world = World(THREE).run()
    assert len(leaders(world)) == 1
    assert leaders(world) == [world.checker.on_irc]


def test_a_founder_takes_in_all_others_and_all_get_a_vote() -> None:
    world = World(replace(THREE, voters=0)).run()
    assert leaders(world) == [0]
    assert [host.disk.electorate and len(host.disk.electorate.voters) for host in world.hosts] == [3, 3, 3]


def test_when_the_leader_is_cut_off_another_takes_over_and_the_first_follows_after_healing() -> None:
    faults = (ScenarioFault(20.0, FaultKind.ISOLATE_LEADER), ScenarioFault(45.0, FaultKind.HEAL))
    world = World(replace(THREE, faults=faults, end=70.0)).run()
    assert len(world.checker.leaders) == 2
    assert sorted(host.node.role.name for host in world.hosts if host.node) == ["FOLLOWING", "FOLLOWING", "LEADING"]


def test_lines_reach_all_and_sends_reach_irc() -> None:
    world = World(THREE).run()
    assert world.checker.said
    assert len(world.checker.lines) > 2
    assert len({host.position for host in world.hosts}) == 1


def test_a_write_is_lost_in_a_crash_or_not_but_never_half() -> None:
    crash = ScenarioFault(16.0, FaultKind.CRASH_LEADER)
    disks: set[int] = set()
    for seed in range(12):
        world = World(replace(THREE, seed=seed, disk=(4.0, 4.0), faults=(crash,), end=17.0), only="")
        world.run()
        disks.update(host.disk.term for host in world.hosts)
    assert len(disks) > 1


def test_an_electorate_that_has_lost_most_of_its_disks_is_told_from_a_failure() -> None:
    faults = (ScenarioFault(20.0, FaultKind.LOSE, (0,)), ScenarioFault(20.0, FaultKind.LOSE, (1,)))
    world = World(replace(THREE, faults=faults, end=21.0)).run()
    assert world.found_after is None
    assert not world.can_have_leader()


def test_a_network_that_finds_no_leader_after_healing_is_a_failure() -> None:
    faults = (ScenarioFault(4.0, FaultKind.CRASH, (0,)), ScenarioFault(4.0, FaultKind.CRASH, (1,)))
    world = World(replace(THREE, faults=faults, end=3.0))
    with pytest.raises(Violation, match="a leader is found after healing: none in 45 s"):
        world.run()


def test_a_flood_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.rigs.hydra_simulator.world.MESSAGES", 0.1)
    with pytest.raises(Violation, match=r"a network does not flood itself: [0-9]+ messages"):
        World(THREE).run()


@pytest.mark.parametrize("nodes", [3, 5, 7, 20, 50])
def test_in_a_network_of_four_links_each_no_node_has_more(nodes: int) -> None:
    links = four_each(nodes)
    ends = [end for link in links for end in link]
    assert {ends.count(node) for node in range(nodes)} <= {2, 3, 4}
    assert set(ends) == set(range(nodes))


def test_fifty_nodes_elect_one_leader() -> None:
    world = World(Scenario(3, 50, four_each(50), voters=50, end=16.0)).run()
    assert len(leaders(world)) == 1
    assert (
        sum(host.node.leader == world.checker.leaders[max(world.checker.leaders)] for host in world.hosts if host.node)
        == 50
    )


def test_a_node_that_has_lost_its_disk_is_let_in_through_a_follower_that_knows_a_dead_member() -> None:
    """Node 3 dials node 2 alone, which follows node 0 or 1 and believes in a member that no other node knows."""
    faults = (
        ScenarioFault(18.0, FaultKind.LOSE, (3,)),
        ScenarioFault(20.0, FaultKind.GHOST, (2,)),
        ScenarioFault(34.0, FaultKind.RESTART, (3,)),
    )
    links = (*mesh(3), (3, 2))
    for seed in range(5):
        world = World(replace(THREE, seed=seed, nodes=4, links=links, voters=3, faults=faults, end=60.0)).run()
        host = world.hosts[3]
        assert host.node is not None
        assert host.node.role is not Role.OUTSIDE
        known = [{member.id for member in each.node.members} for each in world.hosts if each.node is not None]
        assert [len(members) for members in known] == [3, 3, 3, 3]


def test_a_leader_that_stood_still_is_off_irc_before_it_does_anything() -> None:
    for kind in (FaultKind.PAUSE_LEADER, FaultKind.SUSPEND_LEADER):
        faults = (ScenarioFault(20.0, kind), ScenarioFault(45.0, FaultKind.RESUME))
        world = World(replace(THREE, faults=faults, end=46.0)).run()
        assert len(world.checker.leaders) == 2
        assert leaders(world) == [world.checker.on_irc]


def test_a_member_that_lies_does_not_depose_the_leader() -> None:
    faults = tuple(ScenarioFault(20.0 + number, FaultKind.FORGE, (number % 3,)) for number in range(9))
    world = World(replace(THREE, faults=faults, end=40.0)).run()
    assert len(world.checker.leaders) == 1
