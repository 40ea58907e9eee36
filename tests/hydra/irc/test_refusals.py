"""What a real server refuses is known, line by line; what it would cut goes in parts or is refused."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest

from hydra.irc.fates import SENT, Fate, FateKind
from tests.hydra.irc.client import Client
from tests.hydra.irc.ngircd import NgircdProcess
from tests.tools import need
from tests.waiting import PATIENCE

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def ngircd(request: pytest.FixtureRequest) -> Iterator[NgircdProcess]:
    need(request.config, "ngIRCd")
    with NgircdProcess() as server:
        yield server


@pytest.fixture
async def pair(ngircd: NgircdProcess) -> tuple[Client, Client, str]:
    """The operator of a channel and another client in it."""
    unique = next(_numbers)
    channel = f"#c{unique}"
    chief = await Client(ngircd, f"chief{unique}", channel).connected()
    bot = await Client(ngircd, f"bot{unique}", channel, join=0.05).connected()
    await chief.line("JOIN", bot.connection.nick)
    return chief, bot, channel


async def fate(client: Client, line: str) -> Fate:
    """Say a line; what becomes of it."""
    told: asyncio.Future[Fate] = asyncio.get_running_loop().create_future()
    assert client.connection.say(line, told.set_result)
    async with asyncio.timeout(PATIENCE):
        return await told


async def test_a_line_to_a_moderated_channel_is_refused_with_the_servers_words(
    pair: tuple[Client, Client, str],
) -> None:
    chief, bot, channel = pair
    assert await fate(bot, f"PRIVMSG {channel} :before") == SENT
    assert await fate(chief, f"MODE {channel} +m") == SENT
    refused = Fate(FateKind.REFUSED, f"404 {channel} Cannot send to channel")
    assert await fate(bot, f"PRIVMSG {channel} :during") == refused
    assert await fate(chief, f"MODE {channel} -m") == SENT
    assert await fate(bot, f"PRIVMSG {channel} :after") == SENT


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("PRIVMSG nobody :x", "401"), ("PRIVMSG", "411"), ("PRIVMSG #none :x", "401"), ("PRIVMSG @,nobody :x", "401"),
        ("TOPIC #none :x", "403"), ("MODE @ +i", "482"), ("KICK @ chief", "482"), ("KICK @ ghost", "401"),
        ("KICK #none a", "401"), ("PART #none", "403"), ("JOIN none", "403"), ("PRIVMSG @", "412"),
        ("MODE @ +y", "472"), ("MODE chief +i", "502"),
    ],
)  # fmt: skip
async def test_a_command_that_the_server_refuses_is_refused_with_its_number(
    pair: tuple[Client, Client, str], line: str, code: str
) -> None:
    chief, bot, channel = pair
    line = " ".join(
        chief.connection.nick if word == "chief" else word for word in line.replace("@", channel).split(" ")
    )
    kind, words = await fate(bot, line)
    assert (kind, words[:3]) == (FateKind.REFUSED, code), words


@pytest.mark.parametrize(("mode", "code"), [("+i", "473"), ("+k key", "475"), ("+b *!*@*", "474"), ("+l 1", "471")])
async def test_a_join_by_a_program_that_is_refused_is_its_line(
    ngircd: NgircdProcess, pair: tuple[Client, Client, str], mode: str, code: str
) -> None:
    chief, _, channel = pair
    assert await fate(chief, f"MODE {channel} {mode}") == SENT
    stranger = await Client(ngircd, f"s{next(_numbers)}").connected()
    kind, words = await fate(stranger, f"JOIN {channel}")
    assert (kind, words[:3]) == (FateKind.REFUSED, code), words


async def test_an_invitation_is_followed_at_once(pair: tuple[Client, Client, str]) -> None:
    chief, bot, channel = pair
    bot.connection.times = replace(bot.connection.times, join=3600, rejoin=3600)
    assert await fate(chief, f"KICK {channel} {bot.connection.nick} :out") == SENT
    line = f"PRIVMSG {channel} :x"
    await bot.wait_for(lambda: bot.connection.awaits(line))
    bot.connection._join_soon(3600)
    chief.say(f"INVITE {bot.connection.nick} {channel}")
    await bot.wait_for(lambda: bot.connection.awaits(line) is None)


async def test_only_the_refused_ones_of_many_lines_are_refused(pair: tuple[Client, Client, str]) -> None:
    chief, bot, channel = pair
    targets = [channel, "nobody", chief.connection.nick, "#none", channel]
    fates = await asyncio.gather(*(fate(bot, f"PRIVMSG {target} :x") for target in targets))
    assert [each.kind is FateKind.SENT for each in fates] == [True, False, True, False, True]


async def test_a_line_just_after_a_kick_is_refused_and_waits_for_the_channel(pair: tuple[Client, Client, str]) -> None:
    chief, bot, channel = pair
    assert await fate(chief, f"MODE {channel} +n") == SENT
    line = f"PRIVMSG {channel} :late"
    assert bot.connection.awaits(line) is None
    assert await fate(chief, f"MODE {channel} +b *!*@*") == SENT
    assert await fate(chief, f"KICK {channel} {bot.connection.nick} :out") == SENT
    assert (await fate(bot, line)).kind is FateKind.REFUSED
    await bot.wait_for(lambda: "474" in (bot.connection.awaits(line) or ""))
    assert await fate(chief, f"MODE {channel} -b *!*@*") == SENT
    await bot.wait_for(lambda: bot.connection.awaits(line) is None)
    assert await fate(bot, line) == SENT


@pytest.mark.parametrize("letter", ["é", "€", "\N{GRINNING FACE}", "word "])
async def test_text_that_the_server_would_cut_goes_in_several_lines_of_whole_characters(
    pair: tuple[Client, Client, str], letter: str
) -> None:
    chief, bot, channel = pair
    head = f"PRIVMSG {channel} :"
    text = letter * ((510 - len(head)) // len(letter.encode()))
    assert await fate(bot, head + text) == SENT
    await chief.settled(bot)
    heard = [line.partition(head)[2] for line in chief.lines if head in line]
    assert len(heard) == 2
    assert "".join(heard).replace(" ", "") == text.replace(" ", ""), "this server removes spaces at a line's end"


async def test_the_longest_line_that_fits_goes_whole_and_one_byte_more_in_two(pair: tuple[Client, Client, str]) -> None:
    chief, bot, channel = pair
    own = f":{bot.connection.nick}!~hydra@127.0.0.1 "
    head = f"PRIVMSG {channel} :"
    room = 510 - len(own) - len(head)
    for more, lines in ((0, 1), (1, 2)):
        chief.lines.clear()
        assert await fate(bot, head + "x" * (room + more)) == SENT
        await chief.settled(bot)
        assert len([line for line in chief.lines if line.startswith(own + head)]) == lines


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("PRIVMSG @ :\x01ACTION " + "x" * 470 + "\x01", "Only the plain text"), ("TOPIC @ :" + "é" * 240, "Only"),
        ("KICK @ nobody :" + "x" * 401, "the server takes 400"),
    ],
)  # fmt: skip
async def test_what_the_server_would_cut_and_cannot_be_parted_is_refused(
    pair: tuple[Client, Client, str], line: str, words: str
) -> None:
    chief, _, channel = pair
    kind, reason = await fate(chief, line.replace("@", channel))
    assert kind is FateKind.REFUSED
    assert words in reason
