"""The queue between the engine's thread and the one that serves a connection."""

from __future__ import annotations

import os
import select

import pytest

from queues.celery.consumers.inbox import Inbox


def readable(inbox: Inbox) -> bool:
    return bool(select.select([inbox], [], [], 0)[0])


def test_a_reader_of_an_inbox_does_not_spin_after_two_threads_met_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    inbox, write = Inbox(), os.write

    def write_late(descriptor: int, data: bytes) -> int:
        """The other thread's turn comes here: a write lets go of the interpreter before it is done."""
        assert inbox.get() == 1
        assert inbox.get() is None
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", write_late)
    inbox.put([1])
    assert inbox.get() is None
    assert not readable(inbox)


def test_a_closed_inbox_gives_what_it_has_and_then_nothing() -> None:
    inbox = Inbox()
    inbox.put([1])
    assert readable(inbox)
    inbox.close()
    inbox.put([2])
    assert [inbox.get(), inbox.get(), inbox.get()] == [1, 2, None]
