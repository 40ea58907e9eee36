"""The npm package: its codecs against the vectors, its clients against a broker, and what a killed listener costs."""

from __future__ import annotations

import json
import re
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
from tests.peers.running import WebBroker
from tests.process import Process
from tests.waiting import wait_until
from tests.wire.broker import Broker, Database
from wire.overhop.client import Client as OverhopClient

PACKAGE = CHECKOUT / "wire" / "javascript"
HERE = Path(__file__).parent
SECRET = "a secret that all peers share, long enough"
#: A program of docs/javascript.md, and what stands before those without an import.
EXAMPLE = re.compile(r"^```js\n(.*?)^```", re.MULTILINE | re.DOTALL)
GRANTED = f"""
import {{ BlipMQClient, OverhopClient, PeerClient, SspqClient }} from "@fivewire/client";
const [token, secret] = ["dev-key", "{SECRET}"];
"""


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


def test_a_worker_waits_for_its_broker_and_stops_without_one(store: Database, variables: dict[str, str]) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    with Broker(store, "--overhop", address) as broker, OverhopClient(*broker.overhop) as client:
        client.create_queue("early")
    program = Process("node", str(HERE / "worker.mjs"), address.rpartition(":")[2], environment=variables).wait_ready()
    program.read_until("waiting")
    with Broker(store, "--overhop", address) as broker:
        with OverhopClient(*broker.overhop) as client:
            client.enqueue("early", {"n": 7})
        assert program.read_until("job") == "job 7"
        broker.stop(signal.SIGKILL)
    program.read_until("gone")
    program.tell(b"stop\n")
    assert program.wait() == 0, program.log
    assert program.lines[-1] == "stopped"


def test_peers_exchange_messages_before_and_after_a_kill_of_the_broker(
    store: Database, variables: dict[str, str]
) -> None:
    broker = WebBroker(store, PEERBUS_HMAC_SECRET=SECRET).wait_ready()
    program = Process("node", str(HERE / "peers.mjs"), broker.uri(), SECRET, environment=variables)
    try:
        program.read_until("exchanged")
        broker.stop(signal.SIGKILL)
        broker = WebBroker(store, port=broker.address[1], PEERBUS_HMAC_SECRET=SECRET).wait_ready()
        assert program.wait() == 0, program.log
    finally:
        program.stop(signal.SIGKILL)
        broker.stop()
    assert program.lines == ["exchanged", "again", "taken over"]


def example(number: int, place: Path, *changes: tuple[str, str]) -> Path:
    """A program of the page, with other addresses, and with what it takes for granted."""
    program = EXAMPLE.findall((CHECKOUT / "docs" / "javascript.md").read_text())[number]
    for old, new in changes:
        assert old in program
        program = program.replace(old, new)
    if "import" not in program:
        program = GRANTED + program
    path = place / f"example-{number}.mjs"
    path.write_text(program)
    return path


def test_the_programs_of_the_page_do_what_it_says(broker: Broker, store: Database, variables: dict[str, str]) -> None:
    place = Path(variables["FIVEWIRE_DIST"]).parent
    own = place / "node_modules" / "@fivewire" / "client"
    own.parent.mkdir(exist_ok=True)
    own.unlink(missing_ok=True)
    own.symlink_to(place)  # as `npm install` of a directory does
    overhop, blipmq, sspq = (str(port) for _, port in (broker.overhop, broker.blipmq, broker.sspq))
    with OverhopClient(*broker.overhop) as client:
        client.create_queue("greetings")
        jid = client.enqueue("greetings", {"to": "ann"})
        here = (('"127.0.0.1"', f'"127.0.0.1", port: {overhop}'), ("emails:", "greetings:"))
        worker = Process("node", str(example(0, place, *here)))
        try:
            wait_until(lambda: (job := client.job(jid)) and job.result == {"sent": "ann"}, lambda: worker.log)
        finally:
            assert worker.stop() == 0, worker.log
        client.delete_queue("greetings")
    with WebBroker(store, PEERBUS_HMAC_SECRET=SECRET) as web:
        for program, said in (
            (example(1, place, ("9876", overhop), ('"emails"', '"later"')), "delayed"),
            (example(2, place, ("5555", blipmq)), "demo hi"),
            (example(3, place, ("8888", sspq)), "hello"),
            (example(4, place, ("8000", str(web.address[1])), ('"bob"', '"alice"')), "alice { text: 'hello' }"),
        ):
            running = Process("node", str(program))
            try:
                assert running.next_line() == said, running.log
            finally:
                running.stop(signal.SIGKILL)


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
