"""docs/protocols/overhop.md: its examples are true, and a JavaScript worker written from it alone does its work."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import pytest

from brokersite.environment import CHECKOUT
from tests.javascript import JavaScript, installed
from tests.process import Process
from tests.waiting import PATIENCE, wait_until
from tests.wire.broker import Broker, Database
from wire.overhop.client import Client, DuplicateQueue
from wire.overhop.codec.decoder import Decoder, OverhopEnvelope, decode_value
from wire.overhop.codec.encoder import encode, encode_value
from wire.overhop.codec.msgpack_check import CodecError
from wire.overhop.codec.names import Code, Type

PAGE = (Path(CHECKOUT) / "docs/protocols/overhop.md").read_text()
BLOCKS = re.findall(r"^```text\n(.*?)^```$", PAGE, re.M | re.S)
EXAMPLE = re.compile(r'^([A-Z]+) "(.+?)" (\{.*(?:\n  \S.*)*)\n((?:    [0-9a-f]+\n)+)', re.M)
WITH_MEANING = re.compile(r"^([0-9a-f]{2,}) {2,}(\S.*)$", re.M)

STRANGER = Path(__file__).with_name("stranger")


def examples() -> list[tuple[OverhopEnvelope, bytes]]:
    """Every message of the page, and the frame below it."""
    return [
        (
            OverhopEnvelope(Type[name], rid, json.loads(payload.replace("\n ", ""))),
            bytes.fromhex("".join(lines.split())),
        )
        for name, rid, payload, lines in EXAMPLE.findall(PAGE)
    ]


def meanings() -> list[tuple[bytes, str]]:
    """Every line that has bytes and what they mean."""
    return [(bytes.fromhex(data), text) for data, text in WITH_MEANING.findall("".join(BLOCKS))]


def value_of(text: str) -> Any:
    """A value as the page writes it: JSON with nil, or bytes in hex."""
    if text.startswith("bytes "):
        return bytes.fromhex(text.removeprefix("bytes "))
    return json.loads(text.replace("nil", "null"))


VALUES = [(data, value_of(text)) for data, text in meanings() if not text.startswith(("refused:", "closed:"))]
REFUSED = [data for data, text in meanings() if text.startswith("refused:")]
CLOSED = [data for data, text in meanings() if text.startswith("closed:")]


# The page.


@pytest.mark.parametrize(
    ("message", "frame"), [pytest.param(*example, id=Type(example[0].t).name) for example in examples()]
)
def test_an_example_is_the_frame_of_its_message(message: OverhopEnvelope, frame: bytes) -> None:
    assert Decoder.for_client().feed(frame) == [message]
    assert encode(*message).hex() == frame.hex()


def test_every_message_has_an_example() -> None:
    assert {message.t for message, _ in examples()} == set(Type)


@pytest.mark.parametrize(("data", "value"), VALUES)
def test_a_value_is_what_the_page_says(data: bytes, value: Any) -> None:
    assert decode_value(data) == value
    assert encode_value(value) == data


@pytest.mark.parametrize("data", REFUSED)
def test_a_value_is_refused_as_the_page_says(data: bytes) -> None:
    with pytest.raises(CodecError):
        decode_value(data)


@pytest.mark.parametrize("data", CLOSED)
def test_a_frame_ends_the_connection_as_the_page_says(data: bytes) -> None:
    decoder = Decoder()
    assert decoder.feed(data) == []
    assert decoder.error is not None


def test_no_hex_of_the_page_is_left_unchecked() -> None:
    of_frames = sum(len(frame.hex()) for _, frame in examples())
    of_values = sum(len(data.hex()) for data, *_ in (*VALUES, *((data,) for data in (*REFUSED, *CLOSED))))
    everything = "".join(re.findall(r"^ *((?:[0-9a-f]{2})+)(?= {2,}|$)", "".join(BLOCKS), re.M))
    assert len(everything) == of_frames + of_values
    assert VALUES
    assert REFUSED
    assert CLOSED


def test_every_error_code_and_every_type_is_explained() -> None:
    rows = re.findall(r"^\| `?([A-Z_0-9]+)`? \|(?: ([A-Z]+) \|)?", PAGE, re.M)
    assert {first for first, _ in rows} >= set(Code)
    assert {(first, name) for first, name in rows if first.isdigit()} == {(str(int(t)), t.name) for t in Type}


@pytest.fixture
def snippets(broker: Broker) -> list[str]:
    """The page's programs, for this broker: a client, a worker, TLS, a socket."""
    return [
        code.replace("9876", str(broker.overhop[1]))
        for code in re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
    ]


def run_snippet(code: str) -> str:
    """Run a program of the page, and return its output."""
    command = [sys.executable, "-W", "error", "-c", code]
    ran = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


def test_the_programs_of_the_page_run(snippets: list[str], client: Client) -> None:
    with_client, with_worker, _with_tls, with_socket = snippets
    assert run_snippet(with_client).startswith("delayed\n")
    assert run_snippet(with_socket).endswith(" new\n")
    worker = Process(sys.executable, "-Werror", "-c", with_worker)
    wait_until(lambda: client.stats("mail")["completed"] == 4, "what was given")
    assert worker.stop() == 0, worker.log
    done = client.jobs("mail", "completed")
    assert [job.result for job in done] == [{"sent": name} for name in ("ada", "bob", "cy", "dee")]


# The stranger.


@pytest.fixture(scope="module")
def program(request: pytest.FixtureRequest) -> Path:
    """The worker with its packages."""
    return installed(request.config, STRANGER, "worker.mjs")


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with Client(*broker.overhop, timeout=PATIENCE) as connected:
        yield connected


class Stranger(JavaScript):
    """The JavaScript worker."""

    def __init__(self, program: Path, broker: Broker, queue_name: str) -> None:
        host, port = broker.overhop
        super().__init__(program, "work", host, str(port), queue_name)

    def wait_ready(self) -> Self:
        """Wait until it has a queue's jobs."""
        self.until("subscribed")
        return self


def test_the_strangers_jobs_are_each_done_once_by_the_stranger(program: Path, broker: Broker, client: Client) -> None:
    host, port = broker.overhop
    given = subprocess.run(
        ["node", str(program), "enqueue", host, str(port), "reversals", "50"],
        capture_output=True, text=True, timeout=PATIENCE, check=True,
    )  # fmt: skip
    jids = [json.loads(line)["jid"] for line in given.stdout.splitlines()]
    assert len(set(jids)) == 50
    with Stranger(program, broker, "reversals") as worker:
        done = worker.until("done", 50)
        assert worker.stop() == 0
    assert Counter(said["jid"] for said in done) == Counter(jids)
    assert client.stats("reversals") == {
        "new": 0, "waiting": 0, "delayed": 0, "active": 0, "failed": 0, "completed": 50,
    }  # fmt: skip
    for number, jid in enumerate(jids):
        job = client.job(jid)
        assert job is not None
        assert (job.status, job.result) == ("completed", {"attempt": 1, "reversed": f"job {number}"[::-1]})


def test_a_job_that_the_other_implementation_fails_comes_again_until_it_is_done(
    program: Path, broker: Broker, client: Client
) -> None:
    with Stranger(program, broker, "attempts") as worker:
        jid = client.enqueue("attempts", {"text": "grün", "fail": 2})
        assert [said["attempt"] for said in worker.until("failed", 2)] == [1, 2]
        assert worker.until("done") == [{"event": "done", "jid": jid, "attempt": 3}]
        job = client.job(jid)
    assert job is not None
    assert job.result == {"attempt": 3, "reversed": "nürg"}
    assert job.record["log"] == ["attempt 1 of 5", "attempt 2 of 5", "attempt 3 of 5"]


def test_a_job_that_always_fails_is_given_up_with_its_last_error(program: Path, broker: Broker, client: Client) -> None:
    with Stranger(program, broker, "hopeless") as worker:
        jid = client.enqueue("hopeless", {"text": "", "fail": 9}, max_attempts=2)
        worker.until("failed", 2)
    job = client.job(jid)
    assert job is not None
    assert (job.status, job.error, job.attempts) == ("failed", "attempt 2 was to fail", 2)
    assert [each.jid for each in client.jobs("hopeless", "failed")] == [jid]


def test_the_strangers_beats_keep_its_jobs_and_its_goodbye_hands_them_back(
    program: Path, broker: Broker, client: Client, store: Database
) -> None:
    client.create_queue("held")
    store.change_queue(store.queue("held"), ack_timeout=timedelta(seconds=5))  # a pause of seconds is no lost job
    with Stranger(program, broker, "held") as worker:
        jids = [client.enqueue("held", {"text": "", "hold": True}) for _ in range(4)]
        worker.until("beat", 15)  # five for each job, and three would keep it for one deadline
        assert [said["jid"] for said in worker.until("quest")] == jids[:3]  # three credits
        assert worker.stop() == 0
        worker.until("goodbye")
    with Stranger(program, broker, "held") as another:
        assert another.until("quest", 3) == [{"event": "quest", "jid": jid, "attempt": 1} for jid in jids[:3]]


# What libraries in JavaScript make of numbers.


@pytest.mark.parametrize(
    ("library", "case", "why"),
    [
        ("@msgpack/msgpack", "fraction", "floats are not allowed at p.job_payload.price"),
        ("@msgpack/msgpack", "text", ""), ("@msgpack/msgpack", "now", ""), ("@msgpack/msgpack", "undefined", ""),
        ("@msgpack/msgpack", "date", "extension values are not allowed at p.job_payload.at"),
        ("@msgpack/msgpack useBigInt64", "bigint", ""),
        ("msgpackr", "fraction", "floats are not allowed at p.job_payload.price"),
        ("msgpackr", "now", "floats are not allowed at p.job_payload.at"), ("msgpackr", "bigint", ""),
        ("msgpackr", "undefined", "extension values are not allowed at p.job_payload.at"),
        ("msgpackr encodeUndefinedAsNil", "undefined", ""),
    ],
)  # fmt: skip
def test_a_value_as_a_library_in_javascript_writes_it_is_stored_or_refused_with_its_place(
    program: Path, broker: Broker, client: Client, library: str, case: str, why: str
) -> None:
    with contextlib.suppress(DuplicateQueue):
        client.create_queue("prices")
    values = shutil.copy(STRANGER / "values.mjs", program.parent)
    command = ["node", str(values), *map(str, broker.overhop), library, case]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    said = json.loads(ran.stdout)
    assert said == {"event": "refused" if why else "stored", "rid": "3", "msg": why}
