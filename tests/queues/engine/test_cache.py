"""Caches that are bounded by bytes."""

from __future__ import annotations

from queues.engine.cache import Cache


def test_long_names_that_clients_make_up_do_not_fill_the_memory() -> None:
    cache: Cache[bytes, int] = Cache(1000, 1 << 20, lambda name, _: len(name))
    for n in range(200):
        cache.put(b"%d" % n + bytes(50_000), n)
        cache.trim()
        assert sum(map(len, cache)) <= 1 << 20
        assert cache.get(b"%d" % n + bytes(50_000)) == n
    assert len(cache) >= 10


def test_the_oldest_that_are_idle_are_forgotten() -> None:
    cache: Cache[str, bool] = Cache(4, 1000, lambda name, _: 1, lambda idle: idle)
    for name, idle in (("busy", False), ("a", True), ("b", True), ("c", True), ("d", True)):
        cache.put(name, idle)
        cache.trim()
    assert list(cache) == ["busy", "b", "c", "d"]
    cache.put("c", False)
    assert list(cache) == ["busy", "b", "d", "c"]
