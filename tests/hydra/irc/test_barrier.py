"""What became of a line when the server does what real ones do in trouble, or answers PING in its own way."""

from __future__ import annotations

from typing import Any

import pytest

from hydra.irc.connection import ConnectionState
from hydra.irc.fates import SENT, Fate, FateKind
from hydra.irc.fitting import DoesNotFitError, OwnPrefix, fit
from tests.hydra.irc.client import Client
from tests.hydra.irc.scripted import ScriptedClient, ScriptedServer

LINE = "PRIVMSG #c :hello"


async def ready(scripted: ScriptedServer, **times: Any) -> tuple[Client, ScriptedClient, list[Fate]]:
    """A client in `#c`, its server, and the list of fates to come."""
    client = Client(scripted, "alpha", "#c", **times)
    client.connection.connect()
    accepted = await scripted.client()
    await accepted.join()
    await client.wait_for(lambda: client.connections)
    return client, accepted, []


async def token(accepted: ScriptedClient, line: str = LINE) -> bytes:
    """A line has come, and a PING behind it: what it asks to be repeated."""
    assert await accepted.line() == line.encode()
    return (await accepted.line()).removeprefix(b"PING :")


async def test_a_line_counts_as_sent_when_the_server_has_answered_and_the_next_one_waits(
    scripted: ScriptedServer,
) -> None:
    client, accepted, fates = await ready(scripted)
    assert client.connection.say(LINE, fates.append)
    assert client.connection.say("PRIVMSG #c :next", fates.append)
    first = await token(accepted)
    assert not client.connection.has_room
    accepted.send(b":n!u@h PRIVMSG #c :404 Cannot send\r\n:s NOTICE alpha :*** blocked\r\n:s 301 alpha n :away\r\n")
    await client.line("away")
    assert fates == []
    accepted.send(b":s PONG s :%s\r\n" % first)
    second = await token(accepted, "PRIVMSG #c :next")
    assert fates == [SENT]
    accepted.send(b":s 404 alpha #c :Cannot send to channel\r\n:s PONG s :%s\r\n" % second)
    await client.wait_for(lambda: "PONG s :" + second.decode() in client.lines[-1])
    assert fates == [SENT, Fate(FateKind.REFUSED, "404 #c Cannot send to channel")]


async def test_a_server_that_does_not_repeat_the_token_is_understood(scripted: ScriptedServer) -> None:
    client, accepted, fates = await ready(scripted, ping=0.02)
    assert await accepted.until(b"PING :hydra") == b"PING :hydra"  # its answer is still to come
    client.connection.say(LINE, fates.append)
    await accepted.until(b"PING :hydra-1")
    accepted.send(b":s PONG s :s\r\n:s NOTICE alpha :first\r\n")
    await client.line("first")
    assert fates == []
    while not fates:
        accepted.send(b":s PONG s :s\r\n:s NOTICE alpha :more\r\n")
        client.lines.clear()
        await client.line("more")
    assert fates == [SENT]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b":s FAIL PRIVMSG CANNOT_SEND #c :Not now\r\n", "FAIL PRIVMSG CANNOT_SEND #c Not now"),
        (b":s 263 alpha PRIVMSG :Please wait a while\r\n", "263 PRIVMSG Please wait a while"),
        (b":s 477 alpha #c :You need to log in\r\n", "477 #c You need to log in"),
        (b":s 716 alpha n :is in +g mode\r\n", "716 n is in +g mode"),
        (b":s 936 alpha #c word :is not allowed\r\n", "936 #c word is not allowed"),
        (b":s 404 alpha #c :one\r\n:s 404 alpha #c :two\r\n", "404 #c one"), (b":s 422 alpha :No MOTD\r\n", ""),
    ],
)  # fmt: skip
async def test_every_form_of_a_refusal_is_known(scripted: ScriptedServer, said: bytes, words: str) -> None:
    client, accepted, fates = await ready(scripted)
    client.connection.say(LINE, fates.append)
    accepted.send(said + b":s PONG s :%s\r\n" % await token(accepted))
    await client.line("PONG")
    assert fates == [Fate(FateKind.REFUSED, words) if words else SENT]


@pytest.mark.parametrize("end", [b"ERROR :Closing Link: Excess Flood\r\n", b""])
async def test_a_connection_that_ends_before_the_answer_leaves_the_fate_unknown_and_later_lines_unsent(
    scripted: ScriptedServer, end: bytes
) -> None:
    client, accepted, fates = await ready(scripted)
    for _ in range(2):
        client.connection.say(LINE, fates.append)
    await token(accepted)
    accepted.send(end)
    accepted.writer.close()
    reason = await client.lost()
    assert fates == [Fate(FateKind.UNKNOWN, reason), Fate(FateKind.UNSENT, reason)]


async def test_a_line_that_was_refused_before_the_end_is_refused(scripted: ScriptedServer) -> None:
    client, accepted, fates = await ready(scripted)
    client.connection.say(LINE, fates.append)
    await token(accepted)
    accepted.send(b":s 404 alpha #c :no\r\nERROR :bye\r\n")
    await client.lost()
    assert fates == [Fate(FateKind.REFUSED, "404 #c no")]


async def test_leaving_tells_what_is_under_way(scripted: ScriptedServer) -> None:
    client, accepted, fates = await ready(scripted)
    client.connection.say(LINE, fates.append)
    client.connection.say(LINE, fates.append)
    await token(accepted)
    client.connection.leave("resigned")
    assert [fate.kind for fate in fates] == [FateKind.UNKNOWN, FateKind.UNSENT]


async def test_a_server_that_talks_and_never_answers_a_ping_is_given_up(scripted: ScriptedServer) -> None:
    client, accepted, fates = await ready(scripted, silence=0.2)
    client.connection.say(LINE, fates.append)
    await token(accepted)
    while client.connection.state is not ConnectionState.ENDED:
        accepted.send(b":n!u@h PRIVMSG #c :chat\r\n")
        await client.wait_for(lambda: client.losses or client.lines)
        client.lines.clear()
    assert "has not answered a PING for 0.2 s" in await client.lost()
    assert [fate.kind for fate in fates] == [FateKind.UNKNOWN]


async def test_a_part_of_a_text_that_is_refused_ends_the_rest_of_it(scripted: ScriptedServer) -> None:
    client, accepted, fates = await ready(scripted)
    client.connection.say("PRIVMSG #c :" + "x" * 498, fates.append)
    await accepted.line()
    accepted.send(b":s 404 alpha #c :no\r\n:s PONG s :%s\r\n" % (await accepted.line()).removeprefix(b"PING :"))
    await client.line("PONG")
    assert [fate.kind for fate in fates] == [FateKind.REFUSED]
    client.connection.say(LINE, fates.append)
    await token(accepted)


async def test_the_prefix_is_what_the_server_says_last(scripted: ScriptedServer) -> None:
    client, accepted, _ = await ready(scripted)
    prefix = client.connection._prefix
    assert prefix.size("alpha") == len(":alpha!hydra@scripted ")
    accepted.send(b":s 396 alpha cloak.example.net :is now your displayed host\r\n")
    await client.line("396")
    assert prefix.size("alpha") == len(":alpha!hydra@cloak.example.net ")
    accepted.send(b":s 396 alpha ident@users.example :is now your displayed host\r\n")
    accepted.send(b":alpha!new@h.example MODE #c +v x\r\n")
    await client.line("MODE")
    assert prefix.size("alpha") == len(":alpha!new@h.example ")


# Lines that fit, without a server.


@pytest.mark.parametrize("text", ["é" * 300, "a b " * 150, "\N{GRINNING FACE}" * 120, "x" * 1700, "wort " * 99])
@pytest.mark.parametrize("prefix", [10, 40, 101, 200])
def test_no_part_is_longer_than_the_server_relays_and_nothing_is_lost(text: str, prefix: int) -> None:
    parts = fit(f"PRIVMSG #c :{text}", prefix)
    assert all(len(part.encode()) + prefix <= 510 for part in parts)
    assert "".join(part.removeprefix("PRIVMSG #c :") for part in parts) == text


def test_a_host_that_is_unknown_counts_as_the_longest() -> None:
    assert OwnPrefix("~hydra").size("alpha") == len(":alpha!~hydra@") + 64 + 1


class Features:
    linelen, topiclen, kicklen = 1024, 10, "none"


def test_the_limits_that_a_server_names_count() -> None:
    assert fit("PRIVMSG #c :" + "x" * 900, 30, Features()) == ["PRIVMSG #c :" + "x" * 900]
    assert fit("TOPIC #c :0123456789", 30, Features())
    with pytest.raises(DoesNotFitError, match="a text of 11 bytes for TOPIC: the server takes 10"):
        fit("TOPIC #c :0123456789a", 30, Features())


@pytest.mark.parametrize("line", ["PRIVMSG " + "x" * 500 + " :", "MODE #c " + "+o x " * 110, "KICK #c a :" + "x" * 470])
def test_what_cannot_be_parted_does_not_fit(line: str) -> None:
    with pytest.raises(DoesNotFitError, match="Only the plain text of PRIVMSG and NOTICE"):
        fit(line, 40)
