"""Calls of tasks that share an operation: what was done before a call is covered by an operation that begins later."""

from __future__ import annotations

import asyncio

import pytest

from wire.client.shared_calls import SharedCall


class Operation:
    """Each run waits for its turn to `end`, with an error or without."""

    def __init__(self) -> None:
        self.ends: list[asyncio.Future[None]] = []

    async def __call__(self) -> None:
        self.ends.append(asyncio.get_running_loop().create_future())
        await self.ends[-1]


async def joined(call: SharedCall, count: int = 1) -> list[asyncio.Task[None]]:
    """Tasks that have joined, and begun the operation if none was under way."""
    tasks = [asyncio.create_task(call.join()) for _ in range(count)]
    for _ in range(3):
        await asyncio.sleep(0)
    return tasks


async def test_one_operation_answers_those_before_it_and_the_next_one_those_that_came_meanwhile() -> None:
    operation = Operation()
    call = SharedCall(operation)
    first = await joined(call, 3)
    later = await joined(call, 2)
    assert len(operation.ends) == 1
    operation.ends[0].set_result(None)
    await asyncio.wait(first)
    await asyncio.sleep(0)
    assert len(operation.ends) == 2
    assert not any(task.done() for task in later)
    operation.ends[1].set_result(None)
    await asyncio.gather(*first, *later)


async def test_an_error_is_raised_in_each_and_the_next_operation_goes_on() -> None:
    operation = Operation()
    call = SharedCall(operation)
    first = await joined(call, 2)
    later = await joined(call)
    operation.ends[0].set_exception(ConnectionError("gone"))
    for task in first:
        with pytest.raises(ConnectionError, match="gone"):
            await task
    await asyncio.sleep(0)
    operation.ends[1].set_result(None)
    await asyncio.gather(*later)


async def test_a_task_that_is_cancelled_leaves_the_operation_to_the_others() -> None:
    operation = Operation()
    call = SharedCall(operation)
    leaving, staying = await joined(call, 2)
    leaving.cancel()
    await asyncio.wait([leaving])
    operation.ends[0].set_result(None)
    await staying
    assert leaving.cancelled()
