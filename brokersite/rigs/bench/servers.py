"""A RabbitMQ or NATS of a benchmark's own: on loopback, its files in a scratch directory, ended with the benchmark."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from brokersite.rigs.bench.errors import BenchError
from brokersite.rigs.process import RigProcess, free_ports

#: Debian's; its wrapper on the PATH insists on a user of its own.
_RABBITMQ: Final = "/usr/lib/rabbitmq/bin/rabbitmq-server"
_NATS: Final = "nats-server"
#: The first version of NATS that can be told to write each message to the disk before it answers.
NATS_SYNC_ALWAYS: Final = (2, 10)


class PrivateServer(NamedTuple):
    """A running server: its port, and its version as it prints it."""

    port: int
    version: str


@contextlib.contextmanager
def private_rabbitmq(scratch: Path) -> Iterator[PrivateServer]:
    """Run a RabbitMQ (user and password guest). Raises BenchError where it is not installed, or ProcessFailed."""
    program = _RABBITMQ if os.path.exists(_RABBITMQ) else shutil.which("rabbitmq-server")
    if program is None or shutil.which("epmd") is None:
        raise BenchError("RabbitMQ is not installed here. Compare with one that runs: rabbitmq=amqp://HOST:5672")
    home = Path(tempfile.mkdtemp(prefix="rabbitmq-", dir=scratch))
    mapper, port, distribution = free_ports(3)
    with contextlib.ExitStack() as stack:
        _start(stack, ["epmd", "-address", "127.0.0.1", "-port", str(mapper)], home, {}, mapper)
        environment = {
            "HOME": str(home),
            "ERL_EPMD_PORT": str(mapper),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"fivewire-bench-{os.getpid()}@localhost",
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
        server = _start(stack, [program], home, environment, port)
        version = re.search(r"RabbitMQ (\d[\d.]*)", server.output)
        yield PrivateServer(port, version[1] if version else "?")


@contextlib.contextmanager
def private_nats(scratch: Path) -> Iterator[PrivateServer]:
    """Run a NATS server with JetStream, which syncs each message if it can. Raises as `private_rabbitmq` does."""
    if shutil.which(_NATS) is None:
        raise BenchError("NATS is not installed here. Compare with one that runs: nats=nats://HOST:4222")
    home = Path(tempfile.mkdtemp(prefix="nats-", dir=scratch))
    said = subprocess.run([_NATS, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"v?(\d+)\.(\d+)[\d.]*", said)
    version = found[0].lstrip("v") if found else "?"
    sync = "sync_interval: always" if syncs_always(version) else ""
    (port,) = free_ports(1)
    configuration = home / "nats.conf"
    configuration.write_text(f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{home / "data"}"\n{sync} }}\n')
    with contextlib.ExitStack() as stack:
        _start(stack, [_NATS, "-c", str(configuration)], home, {}, port)
        yield PrivateServer(port, version)


def syncs_always(version: str) -> bool:
    """Whether a NATS server of this version can sync each message before it answers."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    return numbers >= NATS_SYNC_ALWAYS


def _start(
    stack: contextlib.ExitStack, command: Sequence[str], home: Path, environment: Mapping[str, str], port: int
) -> RigProcess:
    """Run a program until the stack ends; returns when it listens. Raises ProcessFailed."""
    name = Path(command[0]).name
    server = RigProcess(name, command, home / f"output-{name}", {**os.environ, **environment}, home)
    stack.enter_context(server).wait_listening(port)
    return server
