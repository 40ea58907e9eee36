"""The project's Celery application with a job without Spark and a beat that is in a hurry."""

from __future__ import annotations

import os

from brokersite.celery import app
from queues.etl import runner

__all__ = ["app"]

if "FAKE_JOB_DIRECTORY" in os.environ:
    runner.JOB = "tests.queues.etl.fakejob"

HURRY = {"queues.etl.run_due": 0.25, "queues.etl.recover": 0.5}
for name, seconds in HURRY.items():
    app.conf.beat_schedule[name]["schedule"] = seconds
