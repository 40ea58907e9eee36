"""Celery with real workers."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import chord, group
from celery.app.task import Context
from celery.exceptions import TaskRevokedError
from kombu import pools

from brokersite.rigs.torture.database import TortureDatabase
from queues.celery.consumers import engine_thread, fork_safety
from queues.celery.transport.store_connection import StoreConnection
from tests.queues.celery.transport import project
from tests.queues.celery.transport.conftest import StartWorker, launch
from tests.queues.celery.transport.tables import Tables
from tests.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.timeout(300)


def use(broker: str) -> Any:
    """The project's application on a broker."""
    app = project.app
    app.conf.result_backend = "rpc://"
    app.conf.broker_url = app.conf.broker_read_url = app.conf.broker_write_url = broker
    return app


def leave(app: Any) -> None:
    """Close what Celery keeps open for the life of a process."""
    pools.reset()
    app._after_fork()  # forgets its pools
    app._backend_cache = None
    app._local.__dict__.clear()
    for resource in tuple(fork_safety._watched):
        if isinstance(resource, StoreConnection):
            resource.close()
    engine_thread.stop_all()


@pytest.fixture
def app(broker_url: str) -> Iterator[Any]:
    app = use(broker_url)
    yield app
    leave(app)


def lines(directory: Path, name: str) -> list[str]:
    path = directory / name
    return path.read_text().split() if path.exists() else []


def test_tasks_run_and_their_results_come_back(app: Any, start_worker: StartWorker, tmp_path: Path) -> None:
    start_worker("-c", "2")
    assert project.number.delay(3).get(timeout=PATIENCE) == 3
    results = group(project.number.s(value) for value in range(100))()
    assert sorted(results.get(timeout=PATIENCE)) == list(range(100))
    assert project.stubborn.delay().get(timeout=PATIENCE) == 2
    assert lines(tmp_path, "attempts") == ["0", "1", "2"]
    assert project.number.apply_async((7,), countdown=0.5).get(timeout=PATIENCE) == 7


def test_the_progress_of_a_task_is_there_beside_its_state(app: Any, tables: Tables) -> None:
    result = app.AsyncResult("8c6a5c1e-0000-4000-8000-000000000001")
    request = Context(reply_to=app.backend.oid, correlation_id=result.id)
    with app.producer_pool.acquire(block=True) as producer:
        app.backend.on_task_call(producer, result.id)
    for number in range(20):
        app.backend.store_result(result.id, {"done": number}, "PROGRESS", request=request)
        assert (result.state, result.info) == ("PROGRESS", {"done": number})


def test_a_revoked_task_does_not_run(
    app: Any, start_worker: StartWorker, tmp_path: Path, tables: Tables
) -> None:
    start_worker("-c", "1")
    result = project.number.apply_async((1,), countdown=3600.0)
    assert app.control.revoke(result.id, reply=True, timeout=PATIENCE, limit=1)
    # Its time comes once the worker knows.
    assert tables.rows("update queues_message set due_at = now() where state = 2 returning id")
    with pytest.raises(TaskRevokedError):
        result.get(timeout=PATIENCE)
    assert lines(tmp_path, "numbers") == []


def test_tasks_take_and_return_any_text_in_a_chain_too(app: Any, start_worker: StartWorker) -> None:
    start_worker("-c", "1")
    texts = ["a\0b", "name-\udcff", "😀\\u0000", "\0" * 5000]
    single = [project.echo.delay(text, more=text) for text in texts]
    chains = [(project.echo.s(text) | project.echo.s() | project.echo.s(more=text))() for text in texts]
    assert [result.get(timeout=PATIENCE) for result in single] == texts
    assert [result.get(timeout=PATIENCE) for result in chains] == texts


def test_inspect_and_events_tell_of_the_workers(app: Any, start_worker: StartWorker, tmp_path: Path) -> None:
    first, second = start_worker("-c", "1", "-E"), start_worker("-c", "1", "-E")
    seen: set[str] = set()
    enough = threading.Event()

    def hear(event: dict[str, Any]) -> None:
        seen.add(event["type"])
        if {"worker-heartbeat", "task-received", "task-started", "task-succeeded"} <= seen:
            enough.set()
            receiver.should_stop = True

    with app.connection() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": hear})
        listening = threading.Thread(target=lambda: receiver.capture(limit=None, timeout=PATIENCE), daemon=True)
        listening.start()
        inspect = app.control.inspect(timeout=PATIENCE, limit=2)
        names = {first.name, second.name}
        assert set(inspect.ping()) == names
        assert {name: found["broker"]["transport"] for name, found in inspect.stats().items()} == dict.fromkeys(
            names, "fivewire"
        )
        wait_until(lambda: "worker-heartbeat" in seen, "events are heard")
        project.slow.delay(1, "done")
        # Its child runs it a moment before the worker knows.
        active = wait_until(lambda: [task["name"] for tasks in inspect.active().values() for task in tasks], "it runs")
        assert active == ["tests.queues.celery.transport.project.slow"]
        (tmp_path / "done").touch()
        assert enough.wait(PATIENCE), seen
        listening.join(PATIENCE)


def test_tasks_of_a_killed_worker_run_elsewhere_at_once(
    app: Any, start_worker: StartWorker, tmp_path: Path, tables: Tables
) -> None:
    dying = start_worker("-c", "2")
    for value in range(4):
        project.slow.delay(value, "done")
    wait_until(lambda: len(lines(tmp_path, "begun")) == 2, "two of them run")
    start_worker("-c", "4")
    dying.kill()
    wait_until(lambda: len(lines(tmp_path, "begun")) == 6, "all four run on the other")
    (tmp_path / "done").touch()
    wait_until(lambda: tables.held("celery") == (0, 0, 0, 0), "all are finished")
    assert set(lines(tmp_path, "ended")) == {"0", "1", "2", "3"}


def test_children_forked_later_harm_no_connection(
    app: Any, start_worker: StartWorker, tmp_path: Path, tables: Tables
) -> None:
    worker = start_worker("-c", "1", "--max-tasks-per-child", "2")
    pids = {project.pid.delay().get(timeout=PATIENCE) for _ in range(3)}
    assert len(pids) == 2  # the later one is forked from a process with an engine
    project.sends.delay(1)
    wait_until(lambda: lines(tmp_path, "numbers") == ["1"], "what the child sent ran")
    assert "Trying to re-establish" not in worker.log
    project.slow.delay(1, "done")
    wait_until(lambda: lines(tmp_path, "begun"), "it runs in a child")
    worker.process.kill()
    worker.process.wait()
    start_worker("-c", "1")
    wait_until(lambda: len(lines(tmp_path, "begun")) == 2, "it runs again although the dead worker's child lives")
    (tmp_path / "done").touch()


def test_a_warm_shutdown_hands_back_what_has_not_begun(
    app: Any, start_worker: StartWorker, tmp_path: Path, tables: Tables
) -> None:
    worker = start_worker("-c", "1")
    for value in range(5):
        project.slow.delay(value, "done")
    wait_until(lambda: lines(tmp_path, "begun"), "the first runs")
    worker.send_signal(signal.SIGTERM)
    wait_until(lambda: "Warm shutdown" in worker.log, "it is stopping")
    (tmp_path / "done").touch()
    worker.process.wait(PATIENCE)
    begun = lines(tmp_path, "begun")
    assert lines(tmp_path, "ended") == begun
    assert tables.held("celery") == (5 - len(begun), 0, 0, 0)
    assert tables.rows("select * from queues_node") == []


def test_every_pool_can_be_used(app: Any, start_worker: StartWorker, tmp_path: Path) -> None:
    for pool in ("threads", "solo"):
        worker = start_worker("-P", pool, "-c", "3")
        assert sorted(
            group(project.number.s(value) for value in range(20))().get(timeout=PATIENCE)
        ) == list(range(20)), worker.log
        worker.stop()


def test_chords_with_results_in_the_database(
    app: Any, start_worker: StartWorker, database_url: str, tmp_path: Path
) -> None:
    environment = {
        "DATABASE_URL": database_url,
        "DJANGO_SETTINGS_MODULE": "brokersite.settings",
        "PROJECT_BACKEND": "django-db",
    }
    start_worker("-c", "2", **environment)
    app.conf.result_backend = "django-db"
    for count in (3, 30):
        chord([project.number.s(value) for value in range(count)], app=app)(project.total.s())
    wait_until(lambda: sorted(lines(tmp_path, "totals")) == ["3", "435"], "both chords are complete")
    assert project.number.delay(5).get(timeout=PATIENCE) == 5


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[TortureDatabase]:
    """A server of this test's own."""
    server = TortureDatabase(tmp_path / "postgres")
    try:
        server.start()
        yield server
    finally:
        server.remove()


def test_workers_come_back_when_postgresql_does(postgres: TortureDatabase, tmp_path: Path) -> None:
    at = postgres.server
    assert at is not None
    broker = f"fivewire://{at.user}:{at.password}@{at.host}:{at.port}/{at.dbname}"
    app = use(broker)
    running = launch(broker, tmp_path, "-c", "1")
    try:
        running.wait_ready()
        project.slow.delay(1, "first")
        project.number.delay(1)
        wait_until(lambda: lines(tmp_path, "begun"), "it runs")
        postgres.kill(everything=True)
        project.number.apply_async((2,), retry=True)
        (tmp_path / "first").touch()
        wait_until(lambda: set(lines(tmp_path, "numbers")) == {"1", "2"}, "what was published before and after has run")
        assert app.control.inspect(timeout=PATIENCE, limit=1).ping()
    finally:
        running.stop()
        leave(app)
