"""The state that one process's sessions share: a changed API key ends all its sessions, whatever one of them does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from queues.engine.health import Health
from wire.server import Server


class Session:
    """A session that counts how often it was revoked."""

    def __init__(self) -> None:
        self.revoked = 0

    def revoke(self) -> None:
        self.revoked += 1


class BrokenSession(Session):
    def revoke(self) -> None:
        raise AssertionError("a session's mistake")


def test_a_session_that_raises_when_its_key_is_revoked_leaves_no_other_session_of_the_key_open() -> None:
    engine = SimpleNamespace(on_saturation=[], on_key_change=[], health=Health())
    server = Server(cast(Any, engine))
    sessions = [Session(), BrokenSession(), Session()]
    for session in sessions:
        assert server.admit(1, cast(Any, session))
    for changed in engine.on_key_change:
        changed(1)
    assert [session.revoked for session in sessions] == [1, 0, 1]
    assert engine.health.isolated == {"session": 1}
