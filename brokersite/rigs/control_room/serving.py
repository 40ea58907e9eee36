"""A web server that runs the site, as a process."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psutil

from brokersite.environment import CHECKOUT

#: Seconds that a server has to start, and to end.
PATIENCE: Final = 60.0


@contextmanager
def serving(command: list[str], environment: dict[str, str]) -> Iterator[tuple[int, psutil.Process]]:
    """A web server that runs; its port and its process."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", command[0], "--port", str(port), *command[1:]],
        cwd=CHECKOUT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
            except ConnectionRefusedError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"{command[0]} does not serve") from None
                time.sleep(0.05)
            else:
                break
        yield port, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(PATIENCE)
