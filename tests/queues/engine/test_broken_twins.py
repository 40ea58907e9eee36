"""The checks of the failure boundaries are checked: with a boundary that is broken on purpose, they do not hold."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from queues.engine.api import Engine
from queues.engine.faults import Fault
from queues.engine.health import Health
from queues.engine.settle import writer
from tests.queues.engine.conftest import Consumer, MakeEngine, Producer, Store
from tests.queues.engine.faults import unwritable
from tests.queues.engine.test_faults import Broken, goes_on

pytestmark = pytest.mark.django_db(transaction=True)

#: Seconds within which a neighbour is served, or the boundary is taken for broken. Generous where none is.
SOON, IN_ANY_CASE = 3.0, 60.0


def reraise(patch: pytest.MonkeyPatch) -> None:
    """The helper that takes batches apart gives the first error on."""

    async def carry_out(parts: Any, write: Callable[..., Any], *_: Any, **__: Any) -> None:
        while parts:
            await write(parts[0])
            parts.popleft()

    patch.setattr(writer, "carry_out", carry_out)


def all_lost(patch: pytest.MonkeyPatch) -> None:
    """Every error means that the connection is gone."""
    for module in ("isolation", "consume.fetcher", "supervisor", "connections", "rowwise", "publish.group_commit"):
        patch.setattr(f"queues.engine.{module}.fault_of", lambda *_: Fault.LOST, raising=False)


def unguarded(patch: pytest.MonkeyPatch) -> None:
    """Let exceptions of sessions through."""

    def guard(self: Health, unit: str, owner: object, call: Callable[..., Any], *arguments: Any) -> bool:
        call(*arguments)
        return True

    def broken(self: Health, unit: str, owner: object, error: BaseException) -> None:
        raise error

    patch.setattr(Health, "guard", guard)
    patch.setattr(Health, "broken", broken)


async def a_row_that_cannot_be_removed(engine: Engine, store: Store) -> None:
    queue, neighbour, node = store.queue("orders"), store.queue("neighbour"), engine.node
    await Producer(engine).publish("orders", b"1", b"poison")
    async with unwritable(store, "delete"):
        assert await Consumer(await engine.queue("orders")).bodies(2) == [b"1", b"poison"]
        await goes_on(engine)
        await store.until(
            lambda: store.counts(queue) == (0, 0, 0, 1) and not store.messages(neighbour), "the settlement"
        )
    assert (engine.node, engine.counts.reconnects, engine.available) == (node, 0, True)


async def a_session_that_raises(engine: Engine, store: Store) -> None:
    store.queue("orders")
    store.queue("neighbour")
    node, buffer, broken = engine.node, await engine.queue("orders"), Broken()
    buffer.wait(broken)
    await Producer(engine).publish("orders", b"1", b"2")
    await goes_on(engine)
    assert sorted(await Consumer(buffer).bodies(2)) == [b"1", b"2"]
    assert broken.ended
    assert (engine.node, engine.counts.reconnects, engine.available) == (node, 0, True)


Check = Callable[[Engine, Store], Any]
Twin = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("check", [a_row_that_cannot_be_removed, a_session_that_raises])
async def test_the_checks_hold_while_the_boundaries_are_whole(
    make_engine: MakeEngine, store: Store, check: Check
) -> None:
    async with asyncio.timeout(IN_ANY_CASE):
        await check(await make_engine(), store)


@pytest.mark.parametrize(
    ("twin", "check"),
    [
        (reraise, a_row_that_cannot_be_removed),
        (all_lost, a_row_that_cannot_be_removed),
        (unguarded, a_session_that_raises),
    ],
)
async def test_a_broken_boundary_is_caught(make_engine: MakeEngine, store: Store, twin: Twin, check: Check) -> None:
    engine = await make_engine()
    with pytest.MonkeyPatch.context() as patch:
        twin(patch)
        with pytest.raises((AssertionError, TimeoutError)):
            async with asyncio.timeout(SOON):
                await check(engine, store)
