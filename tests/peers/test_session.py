"""The broker's side of a connection, over a transport and an service that fail."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import cast

import pytest
from prometheus_client import CollectorRegistry

from peers.machine import Event
from peers.metrics import PeersCollector
from peers.service import PeerbusService, PeerOptions
from peers.session import PeerSession
from queues.engine.api import Engine, EngineOptions
from queues.engine.health import Health
from tests.peers.running import register
from tests.waiting import PATIENCE


class Line:
    """A transport that notes how it was closed."""

    def __init__(self) -> None:
        self.unsent = 0
        self.closed: list[tuple[int, str]] = []
        self.ended = asyncio.Event()

    def send(self, texts: Sequence[bytes]) -> None:
        raise AssertionError("nothing is to be sent")

    def close(self, code: int, reason: str) -> None:
        self.closed.append((code, reason))
        self.ended.set()

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class BrokenService(PeerbusService):
    """One whose engine cannot be asked for, for an unforeseen reason."""

    def __init__(self) -> None:
        super().__init__(lambda: (EngineOptions(conninfo=""), PeerOptions()))

    async def engine(self) -> Engine:
        raise LookupError("as told")


async def test_a_register_that_fails_for_an_unforeseen_reason_is_answered_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    service, line = BrokenService(), Line()
    session = PeerSession(line, {}, service)
    with caplog.at_level(logging.ERROR):
        session.texts_received([register("alice")])
        async with asyncio.timeout(PATIENCE):
            await line.ended.wait()
    assert line.closed == [(1011, "peer persistence failed")]
    assert service.failures == 1
    assert service.sessions == set()
    assert "LookupError: as told" in caplog.text


async def test_a_session_that_fails_in_what_all_are_told_keeps_no_other_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service, lines = BrokenService(), [Line(), Line(), Line()]
    sessions = [PeerSession(line, {}, service) for line in lines]
    heard: list[int] = []

    def revoke() -> None:
        if len(heard) == 1:
            heard.append(-1)
            raise LookupError("as told")
        heard.append(7)

    for session in sessions:
        assert service.admit_key(7, session)
        monkeypatch.setattr(session, "revoke", revoke)
    service._key_changed(Health().guard, 7)
    assert heard == [7, -1, 7]
    assert sorted(map(len, (line.closed for line in lines))) == [0, 0, 1]
    assert service.failures == 1
    for session in sessions:
        session.connection_lost()


class RefusingService(PeerbusService):
    """One whose engine knows no key."""

    def __init__(self) -> None:
        super().__init__(lambda: (EngineOptions(conninfo=""), PeerOptions()))

    async def engine(self) -> Engine:
        return cast(Engine, self)

    async def authenticate(self, key: str, protocol: str, address: str) -> None:
        return None


async def test_an_address_that_goes_on_trying_tokens_waits_longer_and_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    service, waits = RefusingService(), asyncio.Queue[float]()
    monkeypatch.setattr("peers.session.pause", waits.put)
    for number in range(6):
        line = Line()
        address = "192.0.2.1" if number else "192.0.2.2"
        PeerSession(line, {"client": (address, 40_000 + number)}, service).texts_received([register("alice")])
        async with asyncio.timeout(PATIENCE):
            await line.ended.wait()
        assert line.closed == [(1008, "invalid bearer token")]
    assert [round(waits.get_nowait(), 1) for _ in range(6)] == [0, 0, 0, 0, 0.1, 0.2]


async def test_frames_that_mean_nothing_are_counted_by_reason() -> None:
    service = BrokenService()
    session = PeerSession(Line(), {}, service)
    session._conversation.on(Event.REGISTER)
    session.texts_received([b"{", b"7", register("again")])
    session.binary_received()
    registry = CollectorRegistry()
    registry.register(PeersCollector(service))
    assert sum(service.ignored.values()) == 4
    for reason, count in service.ignored.items():
        assert registry.get_sample_value("fivewire_peers_ignored_total", {"reason": reason}) == count
