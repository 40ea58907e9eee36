"""`manage.py peer`, `peerpipe` and `peermcp`, as processes and from within."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import CommandError, call_command

from peers.codec import frames
from peers.codec.envelope import Envelope, build
from peers.codec.signing import verify
from peers.pipe import with_token
from tests.peers.broker import FakeBroker
from tests.peers.manage import ENVIRONMENT, command, manage, model_host
from tests.peers.vectors import SECRET
from tests.process import Process
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from mcp import Client

Start = Callable[..., Process]


def letter(id: str, body: bytes = b"1", to: str = "alice") -> bytes:
    return build(sender="bob", to=to, body=body, secret=SECRET, id=id, ts="now").text


@pytest.fixture
def start(broker: FakeBroker) -> Iterator[Start]:
    """Starts a command with the broker's URL, and ends it after the test."""
    started: list[Process] = []

    def start(*arguments: str) -> Process:
        started.append(manage(*arguments, "--url", broker.url))
        return started[-1]

    yield start
    for each in started:
        each.end()


def as_alice(broker: FakeBroker, **changed: str) -> list[str]:
    """The options of a peer; one that is changed to "" is left out."""
    options = {"url": broker.url, "token": "t", "name": "alice", "secret": SECRET} | changed
    return [word for option, value in options.items() if value for word in (f"--{option}", value)]


def run(*arguments: str) -> str:
    out = StringIO()
    call_command(*arguments, stdout=out)
    return out.getvalue()


# peer


def test_a_message_is_sent_signed_and_stored_and_its_id_printed(broker: FakeBroker) -> None:
    printed = run("peer", "send", "bob", '{"a": [1.0]}', *as_alice(broker))
    (stored,) = broker.stored
    assert printed == f"{stored.id}\n"
    assert (stored.sender, stored.to, stored.raw_body) == ("alice", "bob", b'{"a":[1.0]}')
    assert verify(stored.text, SECRET)


def test_a_token_in_a_file_is_in_no_list_of_processes(broker: FakeBroker, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret token\n")
    run("peer", "send", "bob", "1", "--token-file", str(tmp_path / "token"), *as_alice(broker, token=""))
    assert broker.tokens == ["secret token"]
    with pytest.raises(CommandError, match="There is no secret in"):
        run("peer", "send", "bob", "1", "--token-file", "/dev/null", *as_alice(broker, token=""))


def test_a_text_an_id_and_everybody(broker: FakeBroker) -> None:
    assert run("peer", "send", "*", "hello", "--text", "--id", "1", *as_alice(broker)) == "1\n"
    assert (broker.stored[0].body, broker.stored[0].is_broadcast) == ("hello", True)


def test_the_body_comes_from_standard_input(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", StringIO('{"from": "stdin"}\n'))
    run("peer", "send", "bob", *as_alice(broker))
    assert broker.stored[0].body == {"from": "stdin"}


def test_the_secret_is_a_setting_if_it_is_not_given(broker: FakeBroker, settings: Any) -> None:
    settings.PEERBUS_HMAC_SECRET = SECRET
    run("peer", "send", "bob", "1", *as_alice(broker, secret=""))
    assert verify(broker.stored[0].text, SECRET)


def test_unsigned_is_said_and_not_assumed(broker: FakeBroker, settings: Any) -> None:
    settings.PEERBUS_HMAC_SECRET = ""
    with pytest.raises(CommandError, match=r"^There is no secret: give --secret") as raised:
        run("peer", "send", "bob", "1", *as_alice(broker, secret=""))
    assert raised.value.returncode == 2
    run("peer", "send", "bob", "1", "--unsigned", *as_alice(broker, secret=""))
    assert [each.hmac for each in broker.stored] == [""]


@pytest.mark.parametrize(
    ("arguments", "given", "why"),
    [
        (["bob", "{"], {}, r"^The body is no JSON: .* With --text it need not be\.$"),
        (["", "1"], {}, r"^to cannot be ''"),
        (["bob", "1"], {"secret": "short"}, r"^a secret has 32 bytes or more"),
        (["bob", "1"], {"url": "http://localhost"}, r"^'http://localhost' is no WebSocket URL"),
    ],
)
def test_wrong_usage_exits_with_2(broker: FakeBroker, arguments: list[str], given: dict[str, str], why: str) -> None:
    with pytest.raises(CommandError, match=why) as raised:
        run("peer", "send", *arguments, *as_alice(broker, **given))
    assert (raised.value.returncode, broker.stored) == (2, [])


def test_a_rejection_exits_with_1_and_the_brokers_reason(broker: FakeBroker) -> None:
    broker.welcome = lambda connection: frames.NAME_CLAIMED
    with pytest.raises(CommandError, match=r"^NameClaimed: name claimed under a different token \(1008\)$") as raised:
        run("peer", "list", *as_alice(broker))
    assert raised.value.returncode == 1


def test_an_address_without_a_listener_exits_with_1(broker: FakeBroker) -> None:
    with pytest.raises(CommandError, match=r"^ConnectionRefusedError: ") as raised:
        run("peer", "list", *as_alice(broker, url="ws://127.0.0.1:1"))
    assert raised.value.returncode == 1


def test_connected_peers_are_listed(broker: FakeBroker) -> None:
    assert run("peer", "list", *as_alice(broker)) == "alice\n"
    assert json.loads(run("peer", "list", "--json", *as_alice(broker))) == ["alice"]


def test_messages_are_printed_as_lines_of_json_and_acknowledged(broker: FakeBroker) -> None:
    for id, body in (("1", b'{"a": 1.0}'), ("2", '"<é>\\n"'.encode()), ("3", b"3")):
        broker.deliver("alice", "key " + id, letter(id, body))
    lines = run("peer", "listen", "--count", "2", "--timeout", "60", *as_alice(broker)).splitlines()
    assert lines[0] == (
        '{"protocol_version":"v1","id":"1","from":"bob","to":"alice","ts":"now","source":"peer-bus","kind":"msg",'
        '"body":{"a":1.0}}'
    )
    assert [json.loads(line)["body"] for line in lines] == [{"a": 1.0}, "<é>\n"]
    broker.wait(lambda: broker.acked == ["key 1", "key 2"])
    (line,) = run("peer", "listen", "--count", "1", "--timeout", "60", *as_alice(broker)).splitlines()
    assert json.loads(line)["id"] == "3"
    broker.wait(lambda: broker.acked == ["key 1", "key 2", "key 3"])
    assert run("peer", "listen", "--timeout", "0.2", *as_alice(broker)) == ""


def test_ctrl_c_ends_listening_in_order(broker: FakeBroker, start: Start) -> None:
    broker.deliver("alice", "1", letter("1"))
    listening = start("peer", "listen", "--token", "t", "--name", "alice", "--secret", SECRET)
    assert json.loads(listening.next_line())["id"] == "1"
    broker.wait(lambda: broker.acked == ["1"])
    listening.send_signal(signal.SIGINT)
    assert listening.finish() == (0, [], "")
    broker.wait(lambda: not broker.connected)


def test_ctrl_c_while_sending_says_so(broker: FakeBroker, start: Start) -> None:
    broker.before = lambda connection, frame: isinstance(frame, Envelope)
    sending = start("peer", "send", "bob", "1", "--token", "t", "--name", "alice", "--secret", SECRET)
    broker.wait(lambda: broker.stored)
    sending.send_signal(signal.SIGINT)
    status, out, err = sending.finish()
    assert (status, out) == (130, [])
    assert err == "CommandError: Interrupted.\n"


def test_a_reader_that_has_seen_enough_is_no_error(broker: FakeBroker, start: Start) -> None:
    listen = command("peer", "listen", *as_alice(broker))
    with subprocess.Popen(listen, env=ENVIRONMENT, stdout=subprocess.PIPE) as listening:
        broker.wait(lambda: broker.connections)  # and welcomed: a delivery before that would be an error
        assert listening.stdout is not None
        listening.stdout.close()
        broker.deliver("alice", "1", letter("1"))
        assert listening.wait(PATIENCE) == 0
    assert broker.acked == []


# peerpipe

REGISTER = frames.register_frame("secret token", "alice")


def test_lines_cross_the_pipe_byte_for_byte(broker: FakeBroker, start: Start) -> None:
    odd = b' {"protocol_version":"v1", "id":"\\u0031","to":"alice","body" : 1.0 }\r'
    piped = start("peerpipe")
    piped.tell(REGISTER + b"\n")
    assert piped.next_line().encode() == frames.peers_frame(["alice"])
    piped.tell(b"\n" + odd + b'\n{"type":')
    piped.tell(b'"peers"}\n')
    assert piped.next_line().encode() == frames.deliver_frame("1", odd)
    assert piped.next_line().encode() == frames.peers_frame(["alice"])
    assert [each.text for each in broker.stored] == [odd]
    assert piped.finish() == (0, [], "")
    assert broker.tokens == ["secret token"]
    broker.wait(lambda: not broker.connected)


def test_a_line_feed_in_a_frame_of_the_broker_does_not_break_its_line(broker: FakeBroker, start: Start) -> None:
    broker.deliver("alice", "1", b'{\n"protocol_version":"v1"}')
    piped = start("peerpipe")
    piped.tell(REGISTER + b"\n")
    piped.next_line()
    assert piped.next_line().encode() == frames.deliver_frame("1", b'{ "protocol_version":"v1"}')


def test_a_register_without_a_token_is_given_the_pipes(broker: FakeBroker, start: Start) -> None:
    piped = start("peerpipe", "--token", "mine")
    piped.tell(b'{"protocol_version":"v1","type":"register","name":"alice"}\n')
    assert piped.next_line().encode() == frames.peers_frame(["alice"])
    assert broker.tokens == ["mine"]


def test_only_the_first_frame_is_given_a_token(broker: FakeBroker, start: Start) -> None:
    seen: list[frames.Frame] = []
    broker.before = lambda connection, frame: seen.append(frame) or True  # type: ignore[func-returns-value]
    piped = start("peerpipe", "--token", "mine")
    piped.tell(b'{"protocol_version":"v1","type":"register","name":"alice"}\n' * 2 + frames.peers_request() + b"\n")
    piped.next_line()
    assert piped.next_line().encode() == frames.peers_frame(["alice"])
    assert seen == [frames.WRONG_TYPE, frames.PeersRequest()]


@pytest.mark.parametrize("frame", [REGISTER, b'{"type":"ack","id":"1"}', b"[]", b"x", b""])
def test_any_other_frame_stays_as_it_is(frame: bytes) -> None:
    assert with_token(frame, "mine") == frame


def test_a_close_ends_the_pipe_with_its_reason(broker: FakeBroker, start: Start) -> None:
    broker.welcome = lambda connection: frames.INVALID_TOKEN
    piped = start("peerpipe")
    piped.tell(REGISTER + b"\n")
    assert piped.wait() == 1
    status, out, err = piped.finish()
    assert (status, out) == (1, [])
    assert err == "CommandError: ConnectionLost: the broker closed the connection: invalid bearer token (1008)\n"


def test_a_line_over_one_mebibyte_ends_the_pipe(broker: FakeBroker, start: Start) -> None:
    piped = start("peerpipe")
    piped.tell(REGISTER + b"\n")
    piped.next_line()
    largest = b'{"type":"peers","more":"' + b"x" * (2**20 - 26) + b'"}'
    assert len(largest) == 2**20
    piped.tell(largest + b"\n")
    assert piped.next_line().encode() == frames.peers_frame(["alice"])
    piped.tell(b"x" * (2**20 + 1))
    status, out, err = piped.finish()
    assert (status, out, err) == (1, [], "CommandError: LineTooLong: a line has more than 1048576 bytes\n")


# peermcp


def mcp_client(broker: FakeBroker) -> Client:
    return model_host(broker.url, token="t", name="alice", secret=SECRET)


async def call(client: Client, tool: str, **arguments: Any) -> Any:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result
    return result.structured_content


async def test_a_host_sends_lists_and_drains(broker: FakeBroker) -> None:
    for id in "123":
        broker.deliver("alice", "key " + id, letter(id, b'"body %s"' % id.encode()))
    async with mcp_client(broker) as client:
        assert {tool.name for tool in (await client.list_tools()).tools} == {"send", "broadcast", "peers", "drain"}
        sent = await call(client, "send", to="bob", body={"text": "hello"})
        assert await call(client, "broadcast", body=[1])
        assert [(each.id == sent["id"], each.to, each.body) for each in broker.stored] == [
            (True, "bob", {"text": "hello"}), (False, "*", [1])
        ]  # fmt: skip
        assert await call(client, "peers") == {"self": "alice", "peers": []}
        drained = await call(client, "drain", max=2)
        assert drained == {
            "messages": [
                {"id": id, "from": "bob", "ts": "now", "broadcast": False, "body": f"body {id}"} for id in "12"
            ]
        }
        assert broker.acked == []
        assert [message["id"] for message in (await call(client, "drain"))["messages"]] == ["3"]
        assert broker.acked == ["key 1", "key 2"]
        assert (await call(client, "drain"))["messages"] == []
        assert broker.acked == ["key 1", "key 2", "key 3"]


async def test_drained_letters_are_acknowledged_when_the_session_ends(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp.client.stdio.PROCESS_TERMINATION_TIMEOUT", 60)  # before it kills the server
    broker.deliver("alice", "1", letter("1"))
    async with mcp_client(broker) as client:
        assert len((await call(client, "drain"))["messages"]) == 1
        assert broker.acked == []
    broker.wait(lambda: broker.acked == ["1"])


async def test_a_tool_that_cannot_do_it_says_why(broker: FakeBroker) -> None:
    async with mcp_client(broker) as client:
        result = await client.call_tool("send", {"to": "", "body": 1})
        assert result.is_error
        assert "InvalidEnvelope: to cannot be ''" in result.content[0].text  # type: ignore[union-attr]


def test_a_rejected_server_exits_with_1(broker: FakeBroker, start: Start) -> None:
    broker.welcome = lambda connection: frames.INVALID_TOKEN
    rejected = start("peermcp", "--token", "t", "--name", "alice", "--secret", SECRET)
    assert rejected.finish() == (1, [], "CommandError: InvalidToken: invalid bearer token (1008)\n")
