"""A connection to IRC whose owner cannot take everything: what it cannot costs itself alone."""

from __future__ import annotations

import asyncio

import pytest
from irc.client import Event  # type: ignore[import-untyped]

from hydra.irc.settings import IrcServer, IrcUser
from hydra.irc.wire import Wire
from tests.hydra.irc.scripted import ScriptedServer
from tests.waiting import PATIENCE


class Owner:
    """Notes what it takes, and raises for what has the word `bad` in it."""

    def __init__(self, refused: str) -> None:
        self.refused = refused
        self.done = asyncio.Event()
        self.lines: list[str] = []
        self.events: list[str] = []
        self.faults: list[tuple[str, Exception]] = []

    def line(self, line: str) -> None:
        if " PRIVMSG " in line:
            self._take("lines", line.rpartition(":")[2], self.lines)

    def event(self, event: Event) -> None:
        if event.type == "pubmsg":
            self._take("events", event.arguments[0], self.events)

    def _take(self, what: str, text: str, into: list[str]) -> None:
        if self.refused == what and "bad" in text:
            raise RecursionError("unforeseen")
        into.append(text)
        if what == "events" and text == "end":
            self.done.set()

    def fault(self, unit: str, error: Exception) -> None:
        self.faults.append((unit, error))

    def too_long(self) -> None:
        raise AssertionError("no line is too long")

    def ended(self, error: Exception | None) -> None:
        raise AssertionError("the connection goes on")

    def drain(self) -> None:
        raise AssertionError("nothing is written")


def said(*words: str) -> bytes:
    return b"".join(b":a!b@c PRIVMSG #d :%s\r\n" % word.encode() for word in words)


@pytest.mark.parametrize("refused", ["lines", "events"])
async def test_a_line_from_irc_that_cannot_be_taken_costs_itself_only(
    scripted: ScriptedServer, refused: str
) -> None:
    owner = Owner(refused)
    wire = Wire(owner)
    await wire.register(IrcServer("127.0.0.1", scripted.port), IrcUser("alpha"))
    accepted = await scripted.client()
    await accepted.register()
    accepted.send(said("one", "bad", "worse than bad", "two", "end"))
    async with asyncio.timeout(PATIENCE):
        await owner.done.wait()
    everything = ["one", "bad", "worse than bad", "two", "end"]
    taken = {"lines": owner.lines, "events": owner.events}
    assert taken.pop(refused) == ["one", "two", "end"]
    assert [*taken.values()] == [everything]
    assert [type(error) for _, error in owner.faults] == [RecursionError] * 2
    assert all(unit.startswith("IRC line ") and "bad" in unit for unit, _ in owner.faults)
    wire.abort()
