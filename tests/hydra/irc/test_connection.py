"""The leader's connection on a real IRC server."""

from __future__ import annotations

import itertools
import logging

import pytest

from brokersite.rigs.process import free_ports
from hydra.irc.connection import ConnectionState
from hydra.protocol.lines import E_RECV, passes
from tests.hydra.irc.client import Client
from tests.hydra.irc.server import IrcServerProcess

_numbers = itertools.count(1)


@pytest.fixture
async def pair(irc_server: IrcServerProcess) -> tuple[Client, Client, str]:
    """Two clients in a channel of their own."""
    unique = next(_numbers)
    channel = f"#c{unique}"
    alpha = await Client(irc_server, f"a{unique}", channel).connected()
    bravo = await Client(irc_server, f"b{unique}", channel).connected()
    await alpha.line("JOIN", bravo.connection.nick)
    return alpha, bravo, channel


async def test_a_line_is_heard_as_it_was_said(pair: tuple[Client, Client, str]) -> None:
    alpha, bravo, channel = pair
    text = ":  two  and   three    spaces, Grüße, 漢字, \x02bold\x02 and a colon : "
    bravo.say(f"PRIVMSG {channel} {text}")
    nick = bravo.connection.nick
    assert await alpha.line("PRIVMSG") == f":{nick}!hydra@localhost PRIVMSG {channel} {text}"


@pytest.mark.parametrize("length", [510, 700])
async def test_a_long_line_is_neither_refused_nor_cut(pair: tuple[Client, Client, str], length: int) -> None:
    alpha, bravo, channel = pair
    line = f"PRIVMSG {channel} :".ljust(length, "x")
    bravo.say(line)
    assert (await alpha.line("PRIVMSG")).endswith(f" {line}")


async def test_every_event_of_the_channel_is_received_as_a_line_that_nodes_forward(
    pair: tuple[Client, Client, str],
) -> None:
    alpha, bravo, channel = pair
    nick, other = bravo.connection.nick, alpha.connection.nick
    waves = f"PRIVMSG {other} :\x01ACTION waves\x01"
    bravo.say(
        f"TOPIC {channel} :new  topic", f"NOTICE {channel} :psst", f"MODE {channel} +m", waves,
        f"PART {channel}", f"JOIN {channel}", f"KICK {channel} {nick} :out  with you",
    )  # fmt: skip
    source = f":{nick}!hydra@localhost"
    expected = [
        f"{source} NOTICE {channel} :psst", f"{source} MODE {channel} +m", f"{source} {waves}",
        f"{source} PART :{channel}", f"{source} JOIN :{channel}", f"{source} KICK {channel} {nick} :out  with you",
    ]  # fmt: skip
    await alpha.line("KICK")
    assert [line for line in alpha.lines if line.startswith(source)][-len(expected) :] == expected
    assert all(passes(line, E_RECV) for line in expected)
    assert await bravo.line("TOPIC", "new") == f"{source} TOPIC {channel} :new  topic"


async def test_a_nick_that_is_in_use_is_replaced_by_another_like_it(irc_server: IrcServerProcess) -> None:
    clients = [await Client(irc_server, "popular", "#popular").connected() for _ in range(4)]
    assert [each.connection.nick for each in clients] == ["popular", "popular_", "popular2", "popular3"]


async def test_a_channel_that_refuses_is_logged_and_holds_up_no_other(
    irc_server: IrcServerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    client = await Client(irc_server, "refused", "#no-such-name", "#fine").connected()
    (record,) = [each for each in caplog.records if each.name == "hydra.irc"]
    assert record.levelno == logging.WARNING
    assert "#no-such-name: No such channel" in record.getMessage()
    assert await client.line("JOIN :#fine")


async def test_a_kicked_node_rejoins(irc_server: IrcServerProcess) -> None:
    kicker = await Client(irc_server, "kicker", "#arena").connected()
    client = await Client(irc_server, "kicked", "#arena", join=0.02).connected()
    await client.line("kicked!", "JOIN")
    await client.settled(kicker)
    kicker.lines.clear()
    kicker.say("KICK #arena kicked :out")
    await kicker.line("kicked!", "JOIN")
    assert client.connections == 1


async def test_a_node_that_parted_by_a_line_of_its_own_does_not_rejoin(irc_server: IrcServerProcess) -> None:
    other = await Client(irc_server, "stays", "#left").connected()
    client = await Client(irc_server, "leaves", "#left", "#other-name", join=0.02).connected()
    client.say("PART #left")
    await other.line("leaves!", "PART")
    other.lines.clear()
    client.lines.clear()
    # The channel that cannot be joined shows that all are tried again.
    for _ in range(3):
        await client.line("#other-name", "403")
        client.lines.clear()
    await client.settled(other)
    assert not [line for line in other.lines if "JOIN" in line]


async def test_a_server_that_dies_is_told_and_the_same_object_connects_to_the_next() -> None:
    (port,) = free_ports(1)
    with IrcServerProcess(port) as server:
        client = await Client(server, "alpha", "#c").connected()
        server.stop()
        assert "127.0.0.1" in await client.lost()
        assert not client.connection.say("PRIVMSG #c :hello")
        assert client.connection.state is ConnectionState.ENDED
        client.losses.clear()
        client.connection.connect()
        assert f"127.0.0.1:{server.port} cannot be reached" in await client.lost()
        client.losses.clear()
        with IrcServerProcess(port):
            await client.connected()
            client.say("PRIVMSG #c :hello")


async def test_a_quitting_node_gives_its_reason_and_receives_nothing_more(pair: tuple[Client, Client, str]) -> None:
    alpha, bravo, channel = pair
    nick = alpha.connection.nick
    await bravo.settled(alpha)
    told = alpha.told
    alpha.connection.leave("no majority\r\nhas answered")
    assert await bravo.line("QUIT") == f":{nick}!hydra@localhost QUIT :no majority has answered"
    assert alpha.told == told
    assert not alpha.connection.say(f"PRIVMSG {channel} :hello")
    await alpha.connected()
    await bravo.line(nick, "JOIN")


async def test_leaving_while_connecting_is_the_end_of_it(irc_server: IrcServerProcess) -> None:
    client = Client(irc_server, "early", "#early")
    client.connection.connect()
    with pytest.raises(RuntimeError, match="already"):
        client.connection.connect()
    client.connection.leave("never mind")
    client.connection.leave("again")
    witness = await Client(irc_server, "early", "#early").connected()
    assert witness.connection.nick == "early"
    assert client.told == (0, 0, 0)
