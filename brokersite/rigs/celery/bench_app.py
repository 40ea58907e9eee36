"""The Celery application of `manage.py bench celery`: its task records that it ran.

As a program it calls the task for a range of numbers, and prints when this began and ended, in seconds of the machine's
monotonic clock.
"""

from __future__ import annotations

import os
import sys
import time

from celery import Celery

import queues.celery.transport  # noqa: F401 - makes fivewire:// known

app = Celery("bench", broker=os.environ["BENCH_BROKER"])
app.conf.update(
    task_ignore_result=True,
    task_default_queue=os.environ["BENCH_QUEUE"],
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
    broker_transport_options={"confirm_publish": os.environ["BENCH_CONFIRM"] == "on"},
)

#: The second argument of each task.
TEXT = "x" * 64

_ran: int | None = None


@app.task(name="ran")  # type: ignore[untyped-decorator]
def ran(number: int, text: str) -> None:
    """Note in a file that a task ran: its size is how many did."""
    global _ran
    if _ran is None:
        _ran = os.open(os.environ["BENCH_RAN"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(_ran, b"%8d\n" % number)


def main() -> None:
    app.pool.acquire().release()
    began = time.monotonic()
    for number in range(int(sys.argv[1]), int(sys.argv[2])):
        ran.delay(number, TEXT)
    print(began, time.monotonic())


if __name__ == "__main__":
    main()
