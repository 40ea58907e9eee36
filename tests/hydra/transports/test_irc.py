"""Links over private messages, on a real IRC server."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any, cast

import pytest

import hydra.transports.irc as transport
from brokersite.rigs.process import free_ports
from hydra.irc.connection import ConnectionState
from hydra.irc.settings import IrcTimes
from hydra.transports import dial, listen
from hydra.transports.address import IrcAddress, parse_node_address
from hydra.transports.base import Handler, TransportError, TransportLink, TransportOptions
from hydra.transports.irc import IrcLink, IrcListener, dial_irc, listen_irc
from hydra.transports.secret import NONCE_SIZE, Proof
from hydra.transports.stream import StreamLink
from queues.backoff import Backoff
from tests.hydra.irc.client import Client
from tests.hydra.irc.server import IrcServerProcess
from tests.waiting import PATIENCE, Changes

FAST = IrcTimes(interval=0)

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[IrcServerProcess]:
    with IrcServerProcess() as running:
        yield running


class End:
    """One end of a link: what it has heard."""

    def __init__(self, link: TransportLink) -> None:
        assert isinstance(link, StreamLink)
        self.link = link
        self.carrier = cast(IrcLink, link._channel)
        self.data = b""
        self.reasons: list[str] = []
        self._changed = Changes()

    def received(self, data: bytes) -> None:
        assert not self.reasons
        self.data += data
        self._changed.notify()

    def closed(self, reason: str) -> None:
        self.reasons.append(reason)
        self._changed.notify()

    async def wait_for(self, condition: Callable[[], Any]) -> None:
        await self._changed.until(condition)

    async def hears(self, data: bytes) -> None:
        """Wait until exactly this has come."""
        await self.wait_for(lambda: len(self.data) >= len(data))
        assert self.data == data

    async def hears_last(self, data: bytes) -> None:
        """Wait for these bytes, after any others."""
        await self.wait_for(lambda: self.data.endswith(data))

    async def ended(self) -> str:
        """The reason why it was closed from elsewhere."""
        await self.wait_for(lambda: self.reasons)
        (reason,) = self.reasons
        return reason


class Room:
    """A listener and those who dial it."""

    def __init__(self, server: IrcServerProcess, nick: str) -> None:
        self.address = IrcAddress(server.host, server.port, nick)
        self.accepted: list[End] = []
        self.opened: list[End] = []
        self.listener: IrcListener | None = None
        self.refuse = False
        self._changed = Changes()

    def accept(self, link: TransportLink) -> Handler | None:
        if self.refuse:
            return None
        self.accepted.append(End(link))
        self._changed.notify()
        return Handler(self.accepted[-1].received, self.accepted[-1].closed)

    def open(self, link: TransportLink) -> Handler | None:
        self.opened.append(End(link))
        return Handler(self.opened[-1].received, self.opened[-1].closed)

    async def listen(self, irc: IrcTimes = FAST, **options: Any) -> IrcListener:
        self.listener = await listen_irc(self.address, TransportOptions(irc=irc, **options), self.accept)
        return self.listener

    async def dial(self, irc: IrcTimes = FAST, **options: Any) -> End:
        await dial_irc(self.address, TransportOptions(irc=irc, **options), self.open)
        return self.opened[-1]

    async def pair(self) -> tuple[End, End]:
        """A link: the end that has dialled, and the one that has accepted, with a line on its way each."""
        dialled = await self.dial()
        dialled.link.write(b"KNOCK 1 a\r\n")
        accepted = await self.other()
        await accepted.hears(b"KNOCK 1 a\r\n")
        return dialled, accepted

    async def other(self) -> End:
        """The end that was accepted last."""
        count = len(self.opened)
        await self._changed.until(lambda: len(self.accepted) >= count)
        return self.accepted[-1]

    async def close(self) -> None:
        if self.listener is not None:
            await self.listener.close()
        for end in [*self.opened, *self.accepted]:
            end.link.close()
        await asyncio.sleep(0)


@pytest.fixture
async def make_room() -> AsyncIterator[Callable[[IrcServerProcess], Room]]:
    async with AsyncExitStack() as stack:

        def make(server: IrcServerProcess) -> Room:
            room = Room(server, f"room{next(_numbers)}")
            stack.push_async_callback(room.close)
            return room

        yield make


@pytest.fixture
async def room(make_room: Callable[[IrcServerProcess], Room], server: IrcServerProcess) -> Room:
    return make_room(server)


@pytest.fixture
async def listening(room: Room) -> Room:
    await room.listen()
    return room


@pytest.fixture
async def stranger(server: IrcServerProcess) -> AsyncIterator[Client]:
    """A person with an IRC client."""
    client = Client(server, f"stranger{next(_numbers)}")
    await client.connected()
    yield client
    client.connection.leave("bye")
    await asyncio.sleep(0)


LINES = [
    b"KNOCK 12345 probe@5f3c09a1b2c3d4e5",
    b"@term=3;first=0 RECV 0 :n!u@h PRIVMSG #c :  two  and   three spaces ",
    b"RECV 1 :n!u@h PRIVMSG #c :\x01ACTION waves\x01",
    b"RECV 2 :n!u@h PRIVMSG #c :100%25 " + "Grüße, 漢字".encode(),
    b"RECV 3 " + b"x " * 1019 + b"y",
    b"RECV 4 " + "é".encode() * 1000,
]


async def test_lines_arrive_as_they_were_written_both_ways(listening: Room) -> None:
    dialled = await listening.dial()
    data = b"".join(line + b"\r\n" for line in LINES)
    for line in LINES:
        dialled.link.write(line + b"\r\n")
    accepted = await listening.other()
    await accepted.hears(data)
    accepted.link.write(data)
    await dialled.hears(data)
    assert not dialled.reasons
    assert not accepted.reasons


async def test_it_is_one_of_the_transports(room: Room) -> None:
    address = parse_node_address(f"irc://{room.address.host}:{room.address.port}/{room.address.nick}")
    listener = await listen(address, TransportOptions(), room.accept)
    assert isinstance(listener, IrcListener)
    room.listener = listener
    assert parse_node_address(listener.address) == address
    await dial(address, TransportOptions(), room.open)
    room.opened[0].link.write(b"PING 1 1 1\r\n")
    accepted = await room.other()
    await accepted.hears(b"PING 1 1 1\r\n")
    assert accepted.link.origin == "localhost"
    assert room.opened[0].link.origin == str(address)


async def test_lines_of_many_neighbours_never_mix(listening: Room) -> None:
    dialled = [await listening.dial() for _ in range(5)]
    for number in range(20):
        for index, end in enumerate(dialled):
            end.link.write(f"RECV {number} ".encode() + str(index).encode() * 800 + b"\r\n")
    for end in dialled:
        end.link.write(b"END\r\n")
    await listening.other()
    for end in listening.accepted:
        await end.hears_last(b"END\r\n")
    heard = sorted(end.data for end in listening.accepted)
    expected = [
        b"".join(f"RECV {number} ".encode() + str(index).encode() * 800 + b"\r\n" for number in range(20)) + b"END\r\n"
        for index in range(5)
    ]
    assert heard == sorted(expected)


# Ends of links.


async def test_closing_is_told_to_the_other_side(listening: Room) -> None:
    dialled, accepted = await listening.pair()
    accepted.link.close()
    assert await dialled.ended() == f"{listening.address.nick} on IRC has ended the link: closed"
    dialled, accepted = await listening.pair()
    dialled.link.close()
    dialled.link.write(b"PING 1 1 1\r\n")
    assert "has ended the link: closed" in await accepted.ended()
    assert listening.opened[-1].reasons == []
    assert listening.listener is not None
    assert listening.listener.links == {}


async def test_an_unused_nick_ends_the_link_at_the_first_line(room: Room) -> None:
    dialled = await room.dial()
    dialled.link.write(b"KNOCK 1 a\r\n")
    assert f"no private messages to {room.address.nick} on IRC" in await dialled.ended()


async def test_a_neighbour_that_is_gone_is_noticed_at_the_next_line(listening: Room, stranger: Client) -> None:
    _, accepted = await listening.pair()
    stranger.say(f"KILL {accepted.carrier.nick}")
    assert "closed the connection" in await listening.opened[0].ended()
    await stranger.sees_gone(accepted.carrier.nick)
    accepted.link.write(b"PING 1 1 1\r\n")
    assert "no private messages" in await accepted.ended()


async def test_a_neighbour_that_leaves_before_our_eyes_is_noticed_at_once(listening: Room, stranger: Client) -> None:
    """Private messages show no leaving; a channel in common, which a line from elsewhere could open, shows it."""
    dialled, accepted = await listening.pair()
    stranger.say("JOIN #eyes")
    await stranger.line("366", "#eyes")
    for end in (accepted, dialled):
        assert end.carrier.client.connection.say("JOIN #eyes")
        await stranger.line("JOIN", f":{end.carrier.client.connection.nick}!")
    dialled.carrier.client.connection.leave("gone")
    assert "has left IRC" in await accepted.ended()


async def test_a_neighbour_that_is_silent_for_too_long_is_given_up(room: Room) -> None:
    await room.listen(idle=0.2)
    dialled = await room.dial(idle=60)
    dialled.link.write(b"KNOCK 1 a\r\n")
    accepted = await room.other()
    assert await accepted.ended() == f"{accepted.carrier.nick} on IRC is silent for 0.2 s"
    assert "is silent for 0.2 s" in await dialled.ended()


async def test_a_link_that_cannot_keep_up_is_closed(listening: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MAX_WAITING", 5000)
    dialled = await listening.dial(IrcTimes(burst=2, interval=60))
    for number in range(6):
        dialled.link.write(b"RECV %d " % number + b"x" * 1000 + b"\r\n")
    assert not dialled.reasons
    dialled.link.write(b"RECV 7 x\r\n")
    assert await dialled.ended() == f"{listening.address.nick} on IRC does not keep up"
    dialled.link.write(b"RECV 8 x\r\n")


async def test_a_server_that_dies_ends_all_links_and_the_listener_comes_back(
    make_room: Callable[[IrcServerProcess], Room], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "RECONNECT", Backoff(0.01, 0.02))
    (port,) = free_ports(1)
    with IrcServerProcess(port) as server:
        room = make_room(server)
        await room.listen()
        dialled, accepted = await room.pair()
        server.stop()
        for end in (dialled, accepted):
            assert f"127.0.0.1:{server.port}" in await end.ended()
        with pytest.raises(TransportError, match="cannot be reached"):
            await room.dial()
        with IrcServerProcess(port):
            assert room.listener is not None
            async with asyncio.timeout(PATIENCE):
                while room.listener.connection.state is not ConnectionState.READY:
                    await asyncio.sleep(0.01)
            await room.pair()
            await room.close()


# Admission.


async def test_two_cannot_listen_with_one_nick(listening: Room) -> None:
    with pytest.raises(TransportError, match=f"the nick {listening.address.nick} is in use"):
        await listen_irc(listening.address, TransportOptions(irc=FAST), listening.accept)


async def test_nothing_listens_where_no_server_is(make_room: Callable[[IrcServerProcess], Room]) -> None:
    with IrcServerProcess() as server:
        room = make_room(server)
    with pytest.raises(TransportError, match=f"{room.address}: 127.0.0.1:{server.port} cannot be reached"):
        await room.listen()
    room.listener = None


async def test_a_link_that_is_not_accepted_is_closed(listening: Room) -> None:
    listening.refuse = True
    dialled = await listening.dial()
    dialled.link.write(b"KNOCK 1 a\r\n")
    assert "has ended the link: closed" in await dialled.ended()


async def test_there_are_no_more_links_than_allowed(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MAX_LINKS", 1)
    await room.listen()
    await room.pair()
    dialled = await room.dial()
    dialled.link.write(b"KNOCK 1 a\r\n")
    assert "no more links are accepted" in await dialled.ended()


async def test_messages_of_users_to_a_listener_cost_no_link(listening: Room, stranger: Client) -> None:
    nick = listening.address.nick
    stranger.say(
        f"PRIVMSG {nick} :hello", f"PRIVMSG {nick} :\x01VERSION\x01", f"PRIVMSG {nick} :HY1 no piece",
        f"PRIVMSG {nick} :HY1 0 0 0 . KNOCK 1 a", f"NOTICE {nick} :HY1 5f3c09a1 0 0 . KNOCK 1 a",
        f"PRIVMSG {nick} :HY1 5f3c09a1 0 0 ! bye", f"PRIVMSG {nick} :HY1 5f3c09a1 0 3 . PING 1 1 1",
    )  # fmt: skip
    assert (await stranger.line("HY1")).endswith(" :HY1 0 5f3c09a1 0 ! there is no such link")
    assert listening.accepted == []


async def test_a_session_that_begins_anew_is_another_link(listening: Room, stranger: Client) -> None:
    nick = listening.address.nick
    stranger.say(f"PRIVMSG {nick} :HY1 5f3c09a1 0 0 . KNOCK 1 a", f"PRIVMSG {nick} :HY1 90b1c2d3 0 0 . KNOCK 2 b")
    async with asyncio.timeout(PATIENCE):
        while len(listening.accepted) < 2:
            await asyncio.sleep(0.01)
    first, second = listening.accepted
    assert "begins anew" in await first.ended()
    await second.hears(b"KNOCK 2 b\r\n")
    assert first.data == b"KNOCK 1 a\r\n"
    stranger.say(f"PRIVMSG {nick} :HY1 5f3c09a1 0 1 . PING 1 1 1")
    await stranger.line("there is no such link")
    assert second.data == b"KNOCK 2 b\r\n"


async def test_another_client_with_the_same_nick_is_another_neighbour(
    listening: Room, server: IrcServerProcess, stranger: Client
) -> None:
    nick = listening.address.nick
    before = Client(server, "changeling")
    await before.connected()
    before.say(f"PRIVMSG {nick} :HY1 5f3c09a1 0 0 < half of")
    async with asyncio.timeout(PATIENCE):
        while not listening.accepted:
            await asyncio.sleep(0.01)
    before.connection.leave("bye")
    await stranger.sees_gone("changeling")
    after = Client(server, "changeling")
    after.connection.user = type(after.connection.user)("changeling", username="other")
    await after.connected()
    assert after.connection.nick == "changeling"
    after.say(f"PRIVMSG {nick} :HY1 5f3c09a1 0 1 > a line")
    assert "another client has the nick changeling" in await listening.accepted[0].ended()
    await after.line("there is no such link")
    assert listening.accepted[0].data == b""
    after.connection.leave("bye")


async def test_a_listener_that_is_closed_keeps_its_links_until_they_end(listening: Room) -> None:
    dialled, accepted = await listening.pair()
    assert listening.listener is not None
    await listening.listener.close()
    late = await listening.dial()
    late.link.write(b"KNOCK 2 b\r\n")
    assert "no more links are accepted" in await late.ended()
    accepted.link.write(b"PING 1 1 1\r\n")
    await dialled.hears(b"PING 1 1 1\r\n")
    states = [listening.listener.connection.state]
    accepted.link.close()
    states.append(listening.listener.connection.state)
    assert states == [ConnectionState.READY, ConnectionState.ENDED]
    assert "has ended the link" in await dialled.ended()


# The secret.


async def test_with_the_same_secret_a_link_opens(room: Room) -> None:
    await room.listen(secret=b"the same")
    dialled = await room.dial(secret=b"the same")
    dialled.link.write(b"KNOCK 1 a\r\n")
    accepted = await room.other()
    await accepted.hears(b"KNOCK 1 a\r\n")
    accepted.link.write(b"MEET 1 2\r\n")
    await dialled.hears(b"MEET 1 2\r\n")


async def test_with_another_secret_no_link_opens(room: Room) -> None:
    await room.listen(secret=b"one")
    with pytest.raises(TransportError, match="it knows another secret"):
        await room.dial(secret=b"another")
    assert (room.opened, room.accepted) == ([], [])


async def test_a_listener_with_a_secret_refuses_a_side_without_one(room: Room) -> None:
    await room.listen(secret=b"one")
    dialled = await room.dial()
    dialled.link.write(b"KNOCK 1 a\r\n")
    assert "it began to speak without proving" in await dialled.ended()
    assert room.accepted == []


async def test_a_side_with_a_secret_leaves_a_listener_without_one(room: Room) -> None:
    await room.listen()
    with pytest.raises(TransportError, match=r"it has not proved within 0\.2 s that it knows the secret"):
        await room.dial(secret=b"one", proof_timeout=0.2)
    assert room.opened == []


async def test_a_dial_that_is_given_up_leaves_nothing_behind(room: Room) -> None:
    listener = await room.listen()
    task = asyncio.create_task(room.dial(secret=b"one", proof_timeout=PATIENCE))
    async with asyncio.timeout(PATIENCE):
        while not room.accepted:
            await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert "has ended the link" in await room.accepted[0].ended()
    assert listener.links == {}


async def test_a_listener_that_is_closed_does_not_wait_for_proofs_of_the_secret(room: Room) -> None:
    listener = await room.listen(secret=b"one", proof_timeout=PATIENCE)
    dialled = await room.dial()
    dialled.link.write(Proof(b"one", dialled=True, nonce=bytes(NONCE_SIZE)).greeting)
    async with asyncio.timeout(PATIENCE):
        while not listener.links:
            await asyncio.sleep(0.01)
    await listener.close()
    assert (listener.links, listener.connection.state) == ({}, ConnectionState.ENDED)
