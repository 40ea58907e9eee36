"""A broker that stands still, in the middle of whatever it does, is soon no hindrance to others."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.peers.running import Peer, WebBroker, unique
from tests.waiting import wait_until
from tests.wire.broker import Database

#: Seconds in which a session that froze inside a transaction has let go of its locks, and one of its process that had
#: waited for them, and as much again for a machine that is busy.
SOON = 30.0
#: How many sessions wait for this one's locks.
WAITING = "select count(*) from pg_stat_activity where pg_backend_pid() = any(pg_blocking_pids(pid))"
#: Whether a mailbox service has left a transaction open that waits for its broker, and has the audit chain's head.
HOLDING = """
    select exists (
        select from pg_stat_activity a join pg_locks l using (pid)
        where datname = current_database() and application_name = 'fivewire mailboxes' and wait_event = 'ClientRead'
            and relation = 'queues_audithead'::regclass and mode = 'RowShareLock'
    )
"""
SESSIONS = """
    select application_name, pid, state, wait_event, now() - xact_start, now() - state_change, pg_blocking_pids(pid),
        query
    from pg_stat_activity where datname = current_database() and xact_start is not null
"""

pytestmark = pytest.mark.timeout(600)


@contextmanager
def frozen(broker: WebBroker) -> Iterator[None]:
    """A broker that stands still meanwhile."""
    os.kill(broker.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker.process.pid, signal.SIGCONT)


@pytest.mark.long
def test_a_broker_that_freezes_in_a_transaction_holds_up_others_for_a_moment_only(store: Database) -> None:
    with WebBroker(store) as one, WebBroker(store) as other, ExitStack() as stopped:
        sink = Peer(other, unique("sink"))
        old = Peer(one, unique("sender"))
        old.say(sink)
        assert len(sink.consume(1)) == 1  # the chain has a head
        with store.connection.transaction():
            store.execute("select from queues_audithead for update")
            old.say(sink)
            wait_until(lambda: store.value(WAITING), "a transaction that waits for the chain's head")
            stopped.enter_context(frozen(one))
        wait_until(lambda: store.value(HOLDING), "the end of its statement")
        try:
            markers = serve_both(other, old.name, sink)
        except TimeoutError:
            raise AssertionError(f"not soon: {store.rows(SESSIONS)}") from None
        assert sink.consume(2) == markers
        stopped.close()
        old.close()
        sink.close()


def serve_both(broker: WebBroker, name: str, sink: Peer) -> list[str]:
    """Serve a stranger, and the peer that comes over from the broker that stands still; the ids that they sent."""
    began = time.monotonic()
    markers = []
    for each in (unique("stranger"), name):
        peer = Peer(broker, each, patience=SOON)
        markers.append(peer.say(sink))
        peer.peers()
        peer.close()
    assert time.monotonic() - began < SOON
    return markers
