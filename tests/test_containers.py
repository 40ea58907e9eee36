"""Dockerfile and compose.yaml: what they name exists, and each command of a service runs, without Docker."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from brokersite.environment import CHECKOUT
from tests.process import Process
from tests.waiting import wait_until

COMPOSE: dict[str, Any] = yaml.safe_load((CHECKOUT / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OWN = {name: service for name, service in SERVICES.items() if service["image"] == "fivewire"}
#: The directory in which a virtual environment has its programs.
PROGRAMS = Path(sys.executable).parent

Start = Callable[[str], Process]


def test_the_image_is_made_of_files_that_exist_and_reach_the_build() -> None:
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (CHECKOUT / "Dockerfile").read_text(), re.MULTILINE)
    names = {name for line in copied for name in line.split()}
    ignored = (CHECKOUT / ".dockerignore").read_text().splitlines()
    assert names == {line.removeprefix("!") for line in ignored if line.startswith("!")}
    assert all((CHECKOUT / name).exists() for name in names)


def test_the_services_are_the_broker_the_site_celery_and_postgresql_18() -> None:
    assert set(SERVICES) == {"postgres", "migrate", "broker", "site", "celery"}
    assert SERVICES["postgres"]["image"] == "postgres:18"
    assert set(OWN) == {"migrate", "broker", "site", "celery"}
    assert set(COMPOSE["volumes"]) == {mount.split(":")[0] for s in SERVICES.values() for mount in s["volumes"]}


def test_published_ports_are_those_that_the_commands_listen_on_and_other_hosts_do_not_reach_them() -> None:
    published = {port for service in OWN.values() for port in service.get("ports", ())}
    assert published == {f"127.0.0.1:{port}:{port}" for port in (5555, 8000, 8888, 9876)}
    said = " ".join(word for service in OWN.values() for word in service["command"])
    assert set(re.findall(r"0\.0\.0\.0(?::| -p )(\d+)", said)) == {port.split(":")[1] for port in published}


@pytest.fixture
def ports(unused_tcp_port_factory: Callable[[], int]) -> dict[str, str]:
    """A free port in place of each one that a service's command or health check names."""
    text = str([(service["command"], service.get("healthcheck")) for service in OWN.values()])
    return {port: str(unused_tcp_port_factory()) for port in set(re.findall(r"\b\d{4}\b", text))}


@pytest.fixture
def command(ports: dict[str, str]) -> Callable[[list[str]], list[str]]:
    """A command as it runs here: the program of this environment, on free ports of 127.0.0.1."""

    def command(words: list[str]) -> list[str]:
        words = [re.sub(r"\b\d{4}\b", lambda found: ports[found[0]], word) for word in words]
        program = shutil.which(words[0], path=PROGRAMS)
        assert program is not None, f"{words[0]} is no program of the package or of what it depends on"
        return [program, *(word.replace("0.0.0.0", "127.0.0.1") for word in words[1:])]

    return command


@pytest.fixture
def environment(database_url: str, tmp_path: Path) -> dict[str, str]:
    """A service's environment in compose.yaml, with this test's database and directory."""
    given = dict(next(iter(OWN.values()))["environment"])
    assert set(given) == {"DATABASE_URL"}
    path = os.pathsep.join([str(PROGRAMS), os.environ["PATH"]])
    ours = {"PATH": path, "PYTHONPATH": str(CHECKOUT), "DATA_DIR": str(tmp_path), "SECRET_KEY": "containers" * 5}
    return ours | given | {"DATABASE_URL": database_url}


@pytest.fixture
def start(
    command: Callable[[list[str]], list[str]], environment: dict[str, str], tmp_path: Path
) -> Iterator[Start]:
    """Starts a service; ends it as Docker does."""
    started: list[Process] = []

    def start(name: str) -> Process:
        program = command(OWN[name]["command"])
        started.append(Process(*program, cwd=tmp_path, environment=environment, bare=True, merged=True))
        return started[-1]

    yield start
    for process in started:
        process.end()


def test_migrate_ends_well_on_an_up_to_date_database(start: Start) -> None:
    assert start("migrate").wait() == 0


@pytest.mark.parametrize("name", ["broker", "site", "celery"])
def test_a_service_becomes_healthy_and_ends_in_time(
    name: str, start: Start, command: Callable[[list[str]], list[str]], environment: dict[str, str], tmp_path: Path
) -> None:
    kind, *check = OWN[name]["healthcheck"]["test"]
    assert kind == "CMD"
    process = start(name)

    def healthy() -> bool:
        assert process.alive, process.log
        done = subprocess.run(command(check), cwd=tmp_path, env=environment, capture_output=True, check=False)
        return done.returncode == 0

    wait_until(healthy, lambda: process.log)
    began = time.monotonic()
    process.stop()
    assert time.monotonic() - began < float(OWN[name]["stop_grace_period"].removesuffix("s"))
