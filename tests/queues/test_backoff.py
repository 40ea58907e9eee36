"""The wait of a client before it connects again."""

from itertools import islice

from queues.backoff import Backoff


def test_delays_double_from_100_ms_to_5_s() -> None:
    assert list(islice(Backoff(chance=lambda: 0.0).delays(), 8)) == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


def test_chance_takes_up_to_half_off() -> None:
    assert list(islice(Backoff(1.0, 4.0, lambda: 0.5).delays(), 4)) == [0.75, 1.5, 3.0, 3.0]


def test_two_clients_do_not_come_at_once() -> None:
    delays = [next(Backoff().delays()) for _ in range(100)]
    assert len(set(delays)) > 90
    assert all(0.05 <= delay <= 0.1 for delay in delays)
