"""A job without Spark: says that it has begun, waits until the test lets it end, and tells figures."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from queues.etl.job.config import Config
from queues.etl.job.progress import ProgressFile

TABLE = {"rows_in": 100, "rows_out": 100, "bytes": 2048, "files": 1}


def main() -> None:
    config = Config.take(Path(sys.argv[1]))
    directory = Path(os.environ["FAKE_JOB_DIRECTORY"])
    progress = ProgressFile(config.progress)
    print("the fake job has begun", flush=True)
    with progress.stage("messages", total=100):
        progress.tell(stage="messages", done=40, total=100)
        # Renamed, so that it is never found empty. Begun twice, it is there twice.
        beginning = directory / f"beginning-{os.getpid()}"
        beginning.write_text(str(os.getpid()))
        beginning.rename(directory / f"began-{config.run}-{os.getpid()}")
        while not (directory / "finish").exists():
            time.sleep(0.02)
    seconds = {**progress.seconds, "verifying": 0.0}
    progress.tell(
        result={
            "number": 1, "window_from": "", "window_to": "700:760:", "late_rows": 0, "tables": {"messages": TABLE},
            "proven": [], "seconds": seconds,
        }
    )  # fmt: skip


if __name__ == "__main__":
    main()
