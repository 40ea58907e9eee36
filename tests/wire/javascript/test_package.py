"""The npm package: its codecs against the vectors, its clients against a broker, and what a killed listener costs."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokersite.environment import CHECKOUT
from brokersite.rigs.process import free_ports
from tests.javascript import packages
from tests.lengths import lengths
from tests.process import Process
from tests.wire.broker import Broker, Database

PACKAGE = CHECKOUT / "wire" / "javascript"
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def variables(request: pytest.FixtureRequest) -> dict[str, str]:
    """Where the built package and the vectors are, for programs."""
    place = packages(request.config, PACKAGE)
    shutil.rmtree(place / "src", ignore_errors=True)
    shutil.copytree(PACKAGE / "src", place / "src")
    shutil.copy(PACKAGE / "tsconfig.json", place)
    built = subprocess.run(["npx", "tsc"], cwd=place, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout
    return {"FIVEWIRE_DIST": str(place / "dist"), "FIVEWIRE_VECTORS": str(CHECKOUT / "tests" / "vectors.json")}


def test_the_codecs_and_cores_keep_to_the_vectors(variables: dict[str, str]) -> None:
    with_node = Process("node", "--test", str(HERE / "vectors.test.mjs"), environment=variables)
    assert with_node.wait() == 0, with_node.lines


@pytest.fixture
def broker(store: Database) -> Iterator[Broker]:
    with Broker(store) as running:
        yield running


def test_a_program_uses_each_client(broker: Broker, variables: dict[str, str]) -> None:
    ports = [str(port) for _, port in (broker.overhop, broker.blipmq, broker.sspq)]
    program = Process("node", str(HERE / "clients.mjs"), *ports, environment=variables)
    assert program.wait() == 0, program.log
    assert program.lines == ["blipmq", "sspq", "overhop"]


@pytest.mark.parametrize("kills", lengths(short=2, long=5, soak=30))
def test_killed_listeners_lose_nothing_confirmed_and_the_program_goes_on(
    store: Database, variables: dict[str, str], kills: int
) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    broker = Broker(store, "--blipmq", address).wait_ready()
    program = Process("node", str(HERE / "kills.mjs"), address.rpartition(":")[2], environment=variables).wait_ready()
    try:
        for _ in range(kills):
            program.read_until("thousand")
            broker.stop(signal.SIGKILL)
            broker = Broker(store, "--blipmq", address).wait_ready()
            program.read_until("again")
        program.tell(b"stop\n")
        result = json.loads(program.read_until("confirmed"))
    finally:
        program.stop(signal.SIGKILL)
        broker.stop()
    assert result["lost"] == 0, result
    assert result["confirmed"] >= 1000 * kills
