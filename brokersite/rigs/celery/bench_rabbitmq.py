"""A RabbitMQ of a benchmark's own: on loopback, its files in a scratch directory, ended with the benchmark."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator

#: Debian's; its wrapper on the PATH insists on a user of its own.
SERVER = "/usr/lib/rabbitmq/bin/rabbitmq-server"
PATIENCE = 60.0


@contextlib.contextmanager
def private_rabbitmq(scratch: pathlib.Path) -> Iterator[str | None]:
    """Run one; gives its URL, or None where it is not installed. Raises TimeoutError when it does not start."""
    server = SERVER if os.path.exists(SERVER) else shutil.which("rabbitmq-server")
    if server is None or shutil.which("epmd") is None:
        yield None
        return
    home = scratch / "rabbitmq"
    home.mkdir()
    mapper, port, distribution = (_free_port() for _ in range(3))
    with contextlib.ExitStack() as stack:
        _run(stack, ["epmd", "-address", "127.0.0.1", "-port", str(mapper)], home, {})
        _wait_for(mapper)
        environment = {
            "HOME": str(home),
            "ERL_EPMD_PORT": str(mapper),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"celery-bench-{os.getpid()}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_MNESIA_BASE": str(home / "data"),
            "RABBITMQ_LOG_BASE": str(home / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(home / "none"),
            "RABBITMQ_CONF_ENV_FILE": str(home / "none"),
        }
        _run(stack, [server], home, environment)
        _wait_for(port)
        yield f"amqp://guest:guest@127.0.0.1:{port}//"


def _run(stack: contextlib.ExitStack, command: list[str], home: pathlib.Path, environment: dict[str, str]) -> None:
    with (home / "output").open("ab") as out:
        process = subprocess.Popen(
            command, env=os.environ | environment, cwd=home, stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
    stack.callback(process.wait, 30)
    stack.callback(process.terminate)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing listens on port {port} after {PATIENCE:g} s")
        time.sleep(0.1)
