"""Queues by their names."""

from __future__ import annotations

from queues.engine import Engine
from tests.queues.engine.conftest import Store


async def test_policies_are_told_of_queues_that_there_are_and_that_were_asked_for(engine: Engine, store: Store) -> None:
    for name in ("orders", "secret", 'a"\\'):
        store.queue(name)
    found = await engine.named_policies(["orders", "nowhere", "_peer/orders", "orders\0secret", 'a"\\'])
    assert {name: policy.name for name, policy in found.items()} == {"orders": "orders", 'a"\\': 'a"\\'}
    assert await engine.named_policies([]) == {}
