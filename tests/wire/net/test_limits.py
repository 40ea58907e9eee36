import pytest

from wire.net.limits import FEW_BYTES, Closure, ConnectionLimits, ListenerOptions, Refusal


def test_connections_over_the_global_limit_are_refused_until_one_goes() -> None:
    limits = ConnectionLimits(max_connections=2)
    assert limits.acquire("10.0.0.1") is None
    assert limits.acquire("10.0.0.2") is None
    assert limits.acquire("10.0.0.3") is Refusal.MAX_CONNECTIONS
    assert limits.total == 2
    limits.release("10.0.0.1")
    assert limits.acquire("10.0.0.3") is None


def test_one_address_cant_take_every_place() -> None:
    limits = ConnectionLimits(max_connections=10, max_connections_per_address=1)
    assert limits.acquire("10.0.0.1") is None
    assert limits.acquire("10.0.0.1") is Refusal.MAX_CONNECTIONS_PER_ADDRESS
    assert limits.acquire("10.0.0.2") is None
    limits.release("10.0.0.1")
    assert limits.acquire("10.0.0.1") is None


def test_an_ipv6_site_counts_as_one_address() -> None:
    limits = ConnectionLimits(max_connections_per_address=1)
    assert limits.acquire("2001:db8::1") is None
    assert limits.acquire("2001:db8::2") is Refusal.MAX_CONNECTIONS_PER_ADDRESS
    assert limits.acquire("2001:db8:0:1::1") is None


def test_zero_means_no_limit() -> None:
    limits = ConnectionLimits()
    assert {limits.acquire("10.0.0.1") for _ in range(1000)} == {None}
    assert limits.total == 1000


def test_a_client_that_has_gone_leaves_nothing_behind() -> None:
    limits = ConnectionLimits()
    limits.acquire("10.0.0.1")
    limits.release("10.0.0.1")
    with pytest.raises(KeyError):
        limits.release("10.0.0.1")


class Holder:
    """A connection as the limits see it."""

    def __init__(self, stranger: bool = False) -> None:
        self.is_stranger = stranger
        self.evicted: Closure | None = None

    def evict(self, closure: Closure) -> None:
        self.evicted = closure


def test_over_the_limit_on_bytes_the_hungriest_goes_and_gives_back_what_it_held() -> None:
    limits = ConnectionLimits(partial_bytes=160)
    small, large, newcomer = Holder(), Holder(), Holder()
    limits.hold(small, 50)
    limits.hold(large, 80)
    limits.hold(newcomer, 30)
    assert limits.held == 160
    limits.hold(newcomer, 31)
    assert (small.evicted, large.evicted, newcomer.evicted) == (None, Closure.PARTIAL_BYTES, None)
    assert limits.held == 81
    limits.hold(large, 0)
    limits.hold(newcomer, 0)
    limits.hold(small, 0)
    assert limits.held == 0


def test_over_the_limit_on_bytes_strangers_go_first_but_not_for_a_few_bytes() -> None:
    limits = ConnectionLimits(partial_bytes=100 * FEW_BYTES)
    known, modest, greedy = Holder(), Holder(stranger=True), Holder(stranger=True)
    limits.hold(known, 90 * FEW_BYTES)
    limits.hold(modest, FEW_BYTES - 1)
    limits.hold(greedy, 20 * FEW_BYTES)
    assert (known.evicted, modest.evicted, greedy.evicted) == (None, None, Closure.PARTIAL_BYTES)
    limits.hold(known, 101 * FEW_BYTES)
    assert (known.evicted, modest.evicted) == (Closure.PARTIAL_BYTES, None)


def test_enough_is_freed_at_once_that_the_next_byte_evicts_nothing() -> None:
    limits = ConnectionLimits(partial_bytes=1600)
    holders = [Holder() for _ in range(17)]
    for holder in holders:
        limits.hold(holder, 100)
    assert sum(holder.evicted is not None for holder in holders) == 2
    assert limits.held == 1500


def test_too_many_strangers_cost_the_one_that_has_been_strange_longest() -> None:
    limits = ConnectionLimits(max_unauthenticated=2)
    first, second, third, fourth = (Holder(stranger=True) for _ in range(4))
    limits.meet(first)
    limits.meet(second)
    limits.know(first)
    limits.meet(third)
    assert limits.unauthenticated == 2
    limits.meet(fourth)
    assert [holder.evicted for holder in (first, second, third, fourth)] == [
        None, Closure.MAX_UNAUTHENTICATED, None, None
    ]  # fmt: skip
    assert limits.unauthenticated == 2
    limits.know(second)  # it is gone


@pytest.mark.parametrize(
    ("times", "interval"),
    [((10, 300, 60), 1.0), ((2, 300, 60), 0.5), ((0, 0, 0), 1.0), ((0, 1, 0), 0.25), ((0.001, 0, 0), 0.01)],
)
def test_connections_are_looked_at_four_times_within_the_shortest_limit(
    times: tuple[float, float, float], interval: float
) -> None:
    handshake, idle, write = times
    options = ListenerOptions(handshake_timeout=handshake, idle_timeout=idle, write_timeout=write)
    assert options.sweep_interval() == interval
