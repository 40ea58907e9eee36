"""Processes that end, in every way: what they have published without waiting is stored."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from brokersite.environment import CHECKOUT
from tests.queues.celery.transport.conftest import StartWorker
from tests.queues.celery.transport.project import app, sends
from tests.queues.celery.transport.tables import Tables
from tests.waiting import wait_until

#: A program whose `send` publishes to "orders", by a connection of the process that calls it.
PROGRAM = """
import atexit, multiprocessing, os, sys, threading
from queues.celery.transport import Transport  # a thread that goes on at the end cannot import it
from kombu.connection import Connection
from kombu.entity import Queue

def send(count=5):
    connection = Connection(sys.argv[1], transport_options={"confirm_publish": False})
    producer = connection.Producer()
    for number in range(count):
        producer.publish(number, routing_key="orders", declare=[Queue("orders")])
    kept.append(connection)

def children(kind):
    context = multiprocessing.get_context(kind)
    started = [context.Process(target=send) for _ in range(4)]
    for child in started:
        child.start()
    for child in started:
        child.join()

def late():
    kept[0].Producer().publish(1, routing_key="orders")

kept = []
if __name__ == "__main__":
"""
ENDS = {
    "fork": "children('fork')",
    "spawn": "children('spawn')",
    "forkserver": "children('forkserver')",
    "a parent that has published, too": "send(); children('fork')",
    "os.fork": "send(10)\n    if os.fork() == 0: send(10); sys.exit()\n    os.wait()",
    "billiard": "import billiard; child = billiard.Process(target=send, args=(20,)); child.start(); child.join()",
    "an executor's children":
        "import concurrent.futures as f\n"
        "    with f.ProcessPoolExecutor(2, multiprocessing.get_context('fork')) as p: list(p.map(send, [10, 10]))",
    "threads": "for _ in range(4): threading.Thread(target=send).start()",
    "daemon threads": "t = threading.Thread(target=send, args=(20,), daemon=True); t.start(); t.join()",
    "a publish after the end": "send(19)",
    "an exception": "send(20); raise SystemExit('over')",
}


@pytest.mark.parametrize("end", ENDS)
def test_what_a_process_has_published_is_stored_when_it_ends(
    broker_url: str, tables: Tables, tmp_path: Path, end: str
) -> None:
    program = f"{PROGRAM}    {ENDS[end]}\n"
    if end == "a publish after the end":  # the handler that was registered first is called last
        program = "import atexit; atexit.register(lambda: late())\n" + program
    (tmp_path / "program.py").write_text(program)
    command = [sys.executable, "-W", "ignore", str(tmp_path / "program.py"), broker_url]
    ended = subprocess.run(
        command, cwd=CHECKOUT, env={"PYTHONPATH": str(CHECKOUT)}, capture_output=True, text=True, timeout=100
    )
    assert len(tables.messages("orders")) == (25 if "parent" in end else 20), ended.stderr
    assert ended.returncode == (1 if end == "an exception" else 0), ended.stderr


def test_what_a_workers_child_has_published_is_stored_when_it_ends(
    start_worker: StartWorker, broker_url: str, tables: Tables
) -> None:
    start_worker("--concurrency", "1", "--max-tasks-per-child", "1", "-Q", "sending", PROJECT_UNCONFIRMED="1")
    with app.connection_for_write(broker_url) as connection:
        for number in range(3):
            sends.apply_async((number,), queue="sending", connection=connection)
    wait_until(lambda: "celery" in tables.queues() and len(tables.messages("celery")) == 3, "all are stored")
