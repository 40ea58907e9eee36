"""The benchmark of Celery, as far as it needs no worker."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from brokersite.rigs.celery.bench import BYTES, open_systems, pace


def test_tasks_that_all_run_between_two_looks_have_a_rate(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    ran.write_bytes(20 * b"0".rjust(BYTES))
    assert pace(ran, 20) > 0


def test_two_other_brokers_have_figures_of_their_own(tmp_path: Path) -> None:
    compared = ("rabbitmq=amqp://one.example//", "rabbitmq=amqp://two.example:1/v", "rabbitmq=amqp://one.example//")
    systems = open_systems(ExitStack(), compared, tmp_path)  # nothing is made before the first round
    assert [system.name for system in systems if "no confirms" in system.name] == [
        f"{name}, no confirms"
        for name in (
            "Fivewire", "RabbitMQ at one.example:5672", "RabbitMQ at two.example:1/v",
            "RabbitMQ at one.example:5672 (2)",
        )
    ]  # fmt: skip
    assert len({system.name for system in systems}) == 8
