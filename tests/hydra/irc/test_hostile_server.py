"""The leader's connection and a server that does what real ones do only when they are in trouble."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

import pytest

from hydra import clock
from hydra.irc.connection import ConnectionState
from tests.hydra.irc.client import Client
from tests.hydra.irc.scripted import ScriptedClient, ScriptedServer
from tests.wire.net.test_tls import Authority


async def joined(scripted: ScriptedServer, client: Client) -> ScriptedClient:
    """Connect, and be in the channel `#c`."""
    client.connection.connect()
    accepted = await scripted.client()
    await accepted.join()
    await client.wait_for(lambda: client.connections)
    return accepted


# Registration.


@pytest.mark.parametrize(("password", "said"), [("secret", b"secret"), (":a b", b"::a b")])
async def test_a_password_goes_first(scripted: ScriptedServer, password: str, said: bytes) -> None:
    client = Client(scripted, "alpha", password=password)
    client.connection.connect()
    accepted = await scripted.client()
    assert [await accepted.line() for _ in range(3)] == [b"PASS " + said, b"NICK alpha", b"USER hydra 0 * :Hydra"]


async def test_a_ping_before_the_welcome_is_answered(scripted: ScriptedServer) -> None:
    client = Client(scripted)
    client.connection.connect()
    accepted = await scripted.client()
    accepted.send(b":scripted NOTICE AUTH :*** Looking up your hostname\r\nPING :a cookie\r\n")
    assert await accepted.until(b"PONG") == b"PONG :a cookie"
    accepted.send(b":scripted 001 alpha :Welcome\r\n")
    await client.wait_for(lambda: client.connections)


async def test_the_nick_is_the_one_that_the_server_gives(scripted: ScriptedServer) -> None:
    client = Client(scripted, "averylongnick", "#c")
    client.connection.connect()
    accepted = await scripted.client()
    await accepted.until(b"USER")
    accepted.send(b":scripted 001 averylong :Welcome\r\n")
    assert await accepted.until(b"JOIN") == b"JOIN #c"
    accepted.send(b":someone!u@h JOIN :#c\r\n")
    await client.line("someone")
    assert client.connections == 0
    accepted.send(b":averylong!u@h JOIN :#C\r\n")
    await client.wait_for(lambda: client.connections)
    assert client.connection.nick == "averylong"


async def test_when_all_nicks_are_in_use_the_connection_is_given_up(scripted: ScriptedServer) -> None:
    client = Client(scripted)
    client.connection.connect()
    accepted = await scripted.client()
    nicks = []
    while line := await accepted.line():
        if line.startswith(b"NICK"):
            nicks.append(line.removeprefix(b"NICK ").decode())
            accepted.send(f":scripted 433 * {nicks[-1]} :Nickname is already in use\r\n".encode())
    assert nicks[:4] == ["alpha", "alpha_", "alpha2", "alpha3"]
    assert len(nicks) == 15
    assert all(len(nick) <= 9 for nick in nicks[-5:])
    assert "all nicks like alpha are in use" in await client.lost()


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b":scripted 432 * alpha :Erroneous nickname\r\n", "alpha Erroneous nickname"),
        (b":scripted 464 * :Password incorrect\r\n", "Password incorrect"),
        (b":scripted 465 * :You are banned\r\n", "You are banned"),
        (b"ERROR :Closing Link: Throttled\r\n", "Closing Link: Throttled"),
    ],
)
async def test_a_refusal_is_told_with_the_words_of_the_server(
    scripted: ScriptedServer, said: bytes, reason: str
) -> None:
    client = Client(scripted)
    client.connection.connect()
    accepted = await scripted.client()
    await accepted.until(b"USER")
    accepted.send(said)
    assert reason in await client.lost()
    assert await accepted.rest() == b""


async def test_a_server_that_never_welcomes_is_given_up(scripted: ScriptedServer) -> None:
    client = Client(scripted, register=0.05)
    client.connection.connect()
    assert "has not welcomed this client for 0.05 s" in await client.lost()


async def test_a_server_that_does_not_answer_at_all_is_given_up(scripted: ScriptedServer) -> None:
    # No TLS greeting is answered here.
    client = Client(scripted, tls=ssl.create_default_context(), connect=0.05)
    client.connection.connect()
    assert "does not answer for 0.05 s" in await client.lost()


async def test_a_join_that_is_not_answered_holds_up_the_others_briefly_and_is_tried_again(
    scripted: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    client = Client(scripted, "alpha", "#c key", join=0.02)
    client.connection.connect()
    accepted = await scripted.client()
    await accepted.register()
    assert await accepted.until(b"JOIN") == b"JOIN #c key"
    await client.wait_for(lambda: client.connections)
    assert "does not answer JOIN #c" in caplog.text
    assert await accepted.until(b"JOIN") == b"JOIN #c key"
    assert client.connections == 1


async def test_tls_connects_to_a_server_whose_certificate_matches(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("server"))
    async with ScriptedServer(context) as server:
        server.host = "localhost"
        client = Client(server, "alpha", "#c", tls=ssl.create_default_context(cafile=str(authority.file)))
        accepted = await joined(server, client)
        client.say("PRIVMSG #c :hello")
        assert await accepted.line() == b"PRIVMSG #c :hello"
        distrustful = Client(server, "bravo", tls=ssl.create_default_context())
        distrustful.connection.connect()
        assert "certificate verify failed" in await distrustful.lost()
        client.connection.leave("bye")


# Received lines.


async def test_a_line_is_heard_unaltered_whatever_it_is(scripted: ScriptedServer) -> None:
    client = Client(scripted, "alpha", "#c")
    accepted = await joined(scripted, client)
    lines = [
        ":n!u@h PRIVMSG #c :  two  and   three ", ":n!u@h PRIVMSG #c :Grüße an 漢字",
        ":n!u@h PRIVMSG #c :".ljust(510, "x"), "@time=2026-01-01T00:00:00Z;a=b\\sc :n!u@h PRIVMSG #c :tagged",
        f"@k={'v' * 8000} :n!u@h PRIVMSG #c :".ljust(8700, "y"), ":n!u@h PRIVMSG #c :\x01ACTION waves\x01",
        ":n!u@h  KICK   #c   someone :spaces", ":n!u@h PRIVMSG #c nocolon", ":n!u@h PRIVMSG #c :\x0304 colours\x0f",
        ":n!u@h PRIVMSG #c :a bare \r in it", ":n!u@h PRIVMSG #c :a form feed \x0c and \x85 and \u2028 end no line",
    ]  # fmt: skip
    client.lines.clear()
    data = "".join(f"{line}\r\n" for line in lines).encode()
    accepted.send(data[:700])
    await client.line("x" * 400)
    accepted.send(data[700:])
    await client.line("\u2028")
    assert client.lines == lines


async def test_invalid_utf_8_is_replaced_and_the_rest_of_the_line_stays(scripted: ScriptedServer) -> None:
    client = Client(scripted, "alpha", "#c")
    accepted = await joined(scripted, client)
    cut = (b":n!u@h PRIVMSG #c :" + "é".encode() * 300)[:510]
    assert cut[-1] == 0xC3
    accepted.send(cut + b"\r\n:n!u@h PRIVMSG #c :caf\xe9  and more\r\n")
    await client.line("caf")
    assert client.lines[-2:] == [cut[:-1].decode() + "\ufffd", ":n!u@h PRIVMSG #c :caf\ufffd  and more"]
    assert not client.losses


async def test_lines_that_the_parser_cannot_read_are_heard_and_harm_nothing(
    scripted: ScriptedServer, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    client = Client(scripted, "alpha", "#c")
    accepted = await joined(scripted, client)
    broken = [
        "PRIVMSG", ":n!u@h PRIVMSG #c", "QUIT", ":n!u@h QUIT", "NICK x", ":n!u@h NICK", "PING", " ", ":",
        "@", "@a", ":n", "MODE", "JOIN", "KICK", ":n!u@h KICK #c", "PART", "001", "433", "JOIN :", ":x JOIN",
    ]  # fmt: skip
    client.lines.clear()
    accepted.send("".join(f"{line}\r\n" for line in [*broken, "PING :done"]).encode())
    assert await accepted.until(b"PONG :done")
    assert client.lines == [*broken, "PING :done"]
    assert [record for record in caplog.records if record.levelno > logging.DEBUG] == []
    assert capfd.readouterr() == ("", "")
    assert not client.losses


async def test_a_line_that_does_not_end_ends_the_connection(scripted: ScriptedServer) -> None:
    client = Client(scripted, "alpha", "#c")
    accepted = await joined(scripted, client)
    accepted.send(b"x" * 16_385)
    assert "a line of more than 16384 bytes" in await client.lost()


async def test_a_server_that_closes_is_told(scripted: ScriptedServer) -> None:
    client = Client(scripted, "alpha", "#c")
    accepted = await joined(scripted, client)
    accepted.writer.close()
    assert await client.lost() == f"127.0.0.1:{scripted.port} has closed the connection"


async def test_a_silent_server_is_asked_and_then_taken_for_dead(
    scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(scripted, "alpha", "#c", ping=60, silence=400)
    accepted = await joined(scripted, client)
    loop = asyncio.get_running_loop()
    timers, now, ahead = loop.time, clock.now, 0.0
    monkeypatch.setattr(loop, "time", lambda: timers() + ahead)
    monkeypatch.setattr(clock, "now", lambda: now() + ahead)
    for number in range(10):
        ahead += 60
        assert await accepted.line() == b"PING :hydra"
        accepted.send(b":scripted PONG scripted :hydra %d\r\n" % number)
        await client.line(f":hydra {number}")
    assert not client.losses
    ahead += 400
    assert "says nothing for 400 s" in await client.lost()


# Sent lines.


@pytest.mark.parametrize("length", [510, 511, 1900])
async def test_a_line_is_sent_as_it_is_however_long(
    scripted: ScriptedServer, length: int, caplog: pytest.LogCaptureFixture
) -> None:
    client = Client(scripted, "alpha", "#c")
    accepted = await joined(scripted, client)
    line = "privmsg  #c  :Grüße ".encode().ljust(length)
    client.say(line.decode())
    assert await accepted.line() == line
    assert ("may cut lines of more than 510 bytes" in caplog.text) is (length > 510)


async def test_invalid_lines_and_too_many_lines_are_refused(scripted: ScriptedServer) -> None:
    client = Client(scripted, "alpha", "#c", burst=2, interval=60, queue=2)
    assert not client.connection.say("PRIVMSG #c :too early")
    accepted = await joined(scripted, client)
    for line in ("PRIVMSG #c :a\r\nQUIT", "PRIVMSG #c :a\nQUIT", "PRIVMSG #c :\0"):
        assert not client.connection.say(line)
    has_room = [client.connection.has_room]
    client.say("one", "two", "three")
    has_room.append(client.connection.has_room)
    assert has_room == [True, False]
    assert not client.connection.say("four")
    assert await accepted.line() == b"one"


async def test_lines_keep_their_order_at_the_pace_that_the_server_bears(scripted: ScriptedServer) -> None:
    client = Client(scripted, "alpha", "#c", burst=3, interval=0.01)
    accepted = await joined(scripted, client)
    client.say(*(f"PRIVMSG #c :{number}" for number in range(30)))
    assert [await accepted.line() for _ in range(30)] == [b"PRIVMSG #c :%d" % number for number in range(30)]


async def test_a_line_that_may_no_longer_be_sent_is_not_sent(scripted: ScriptedServer) -> None:
    leased = True
    client = Client(scripted, "alpha", "#c", may_speak=lambda: leased, ping=0.05)
    accepted = await joined(scripted, client)
    client.say("PRIVMSG #c :before")
    leased = False
    assert not client.connection.has_room
    client.say("PRIVMSG #c :after")
    accepted.send(b"PING :cookie\r\n")
    await client.line("cookie")
    client.connection.leave("the lease is over")
    rest = await accepted.rest()
    assert rest.startswith(b"PRIVMSG #c :before\r\n")
    assert b"after" not in rest
    assert b"PONG" not in rest


# The end.


async def test_waiting_lines_are_never_sent_on_the_next_connection(scripted: ScriptedServer) -> None:
    client = Client(scripted, "alpha", "#c", burst=2, interval=0.02)
    accepted = await joined(scripted, client)
    client.say(*(f"PRIVMSG #c :{number}" for number in range(10)))
    accepted.reset()
    await client.lost()
    client.losses.clear()
    client.connection.connect()
    again = await scripted.client()
    await again.join()
    await client.wait_for(lambda: client.connections == 2)
    client.say("PRIVMSG #c :new")
    assert await again.line() == b"PRIVMSG #c :new"


@pytest.mark.parametrize("when", ["heard", "connected"])
async def test_a_leave_while_lines_are_read_ends_the_reading(scripted: ScriptedServer, when: str) -> None:
    def heard(line: str) -> None:
        if "leave now" in line:
            client.connection.leave("as told")

    client = Client(scripted, "alpha", "#c", on_line=heard)
    if when == "heard":
        accepted = await joined(scripted, client)
    else:
        client.connection.connect()
        accepted = await scripted.client()
        await accepted.register()
        await accepted.until(b"JOIN")
    accepted.send(b":n!u@h NOTICE #c :leave now\r\n:alpha!u@h JOIN :#c\r\nPING :x\r\nERROR :bye\r\n")
    assert b"PONG" not in await accepted.rest()
    assert "leave now" in client.lines[-1]
    assert client.losses == []
    assert client.connections == (when == "heard")
    assert client.connection.state is ConnectionState.ENDED


async def test_all_ends_at_once_while_the_server_is_being_connected_to(scripted: ScriptedServer) -> None:
    client = Client(scripted)
    client.connection.connect()
    await scripted.client()
    client.connection.leave("too late")
    await asyncio.sleep(0)
    assert client.told == (0, 0, 0)
