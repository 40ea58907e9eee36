"""Tenures of leaders and of IRC, from snapshots of a node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hydra.storage.tenures import MAX_WAITING, Tenures
from tests.hydra.protocol.driver import leader_of_three
from tests.hydra.rows import look_at, open_store, rows, show
from tests.waiting import until


def seen(tenures: Tenures) -> list[tuple[str, int, float, float]]:
    return [(one.kind, one.term, one.began, one.until) for one in tenures]


def follow(
    tenures: Tenures, now: float, role: str, irc: str = "off", term: int = 1, lease: float | None = None
) -> None:
    status: Any = replace(look_at(leader_of_three()), role=role, irc=irc, term=term)
    tenures.follow(status, now, lease)


def test_a_tenure_lasts_from_the_first_sight_to_the_last() -> None:
    tenures = Tenures()
    follow(tenures, 1.0, "calling")
    assert seen(tenures) == []
    follow(tenures, 2.0, "leading", lease=9.0)
    follow(tenures, 3.0, "leading", "on", lease=9.0)
    follow(tenures, 4.0, "leading", "on", lease=9.0)
    assert seen(tenures) == [("lead", 1, 2.0, 4.0), ("irc", 1, 3.0, 4.0)]
    follow(tenures, 5.0, "leading", lease=9.0)
    follow(tenures, 6.0, "following", term=2)
    assert seen(tenures) == [("irc", 1, 3.0, 4.0), ("lead", 1, 2.0, 5.0)]
    tenures.written(2)
    assert seen(tenures) == []


def test_a_new_term_is_a_new_tenure_and_a_written_one_that_goes_on_stays() -> None:
    tenures = Tenures()
    follow(tenures, 1.0, "leading", lease=9.0)
    tenures.written(1)
    follow(tenures, 2.0, "leading", term=2, lease=9.0)
    assert seen(tenures) == [("lead", 1, 1.0, 1.0), ("lead", 2, 2.0, 2.0)]


def test_a_process_that_stood_still_led_no_longer_than_its_lease() -> None:
    tenures = Tenures()
    follow(tenures, 1.0, "leading", "on", lease=3.0)
    follow(tenures, 60.0, "leading", "on", lease=3.0)
    assert {one.until for one in tenures} == {3.0}


def test_tenures_that_cannot_be_written_are_bounded() -> None:
    tenures = Tenures()
    for n in range(5 * MAX_WAITING):
        follow(tenures, float(n), "leading" if n % 2 else "following", lease=1e9)
    assert len(list(tenures)) <= MAX_WAITING + 2


@pytest.mark.django_db(transaction=True)
async def test_a_running_node_writes_its_tenures_once_and_goes_on_with_them() -> None:
    opened = await open_store()
    leader = leader_of_three()
    await show(opened, leader)
    written = "select kind, term, until > began_at as lasted from hydra_tenure where name = 'alpha' order by kind"
    await until(lambda: len(rows(written)) == 2, "its tenures")
    await until(lambda: _again(opened, leader) and all(row["lasted"] for row in rows(written)), "that they go on")
    assert [(row["kind"], row["term"]) for row in rows(written)] == [("irc", 4), ("lead", 4)]
    opened.store.status.publish(replace(look_at(leader), role="following", irc="off"))
    await until(lambda: rows("select from hydra_node where role = 'following'"), "the end")
    assert len(rows(written)) == 2
    await opened.store.close()


def _again(opened: Any, leader: Any) -> bool:
    opened.store.status.publish(look_at(leader))
    return True
