"""A broker that stands still, in the middle of whatever it does, is soon no hindrance to others."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.peers.running import Peer, RawPeer, WebBroker, envelope, unique
from tests.waiting import wait_until
from tests.wire.broker import Database

#: Seconds in which a session that froze inside a transaction has let go of its locks, and one of its process that had
#: waited for them, and as much again for a machine that is busy.
SOON = 30.0
#: Once no mailbox service's statement is being executed, though some may wait for a lock: whether one that waits for
#: its broker has the audit chain's head, for which all others wait.
HOLDING = """
    select bool_or(wait_event = 'ClientRead' and exists (
        select from pg_locks l where l.pid = a.pid and relation = 'queues_audithead'::regclass and mode = 'RowShareLock'
    )) from pg_stat_activity a
    where datname = current_database() and application_name = 'fivewire mailboxes'
    having bool_and(state = 'idle' or wait_event = 'ClientRead' or wait_event_type = 'Lock')
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


def holds_the_chain(store: Database) -> bool:
    """Whether a broker that stands still has left a transaction open in which it holds the audit chain's head."""
    ((holding,),) = wait_until(lambda: store.rows(HOLDING), "the end of every statement")
    return bool(holding)


@pytest.mark.long
def test_a_broker_that_freezes_in_a_transaction_holds_up_others_for_a_moment_only(store: Database) -> None:
    with WebBroker(store) as one, WebBroker(store) as other:
        sink = Peer(other, unique("sink"))
        for _ in range(50):
            with RawPeer(one, unique("sender")) as old:
                old.send_texts(*(envelope(sink.name, unique("flood"), body="x" * 200) for _ in range(2000)))
                with frozen(one):
                    if not holds_the_chain(store):
                        continue
                    try:
                        marker = serve_both(other, old.name, sink)
                    except TimeoutError:
                        raise AssertionError(f"not soon: {store.rows(SESSIONS)}") from None
                while sink.consume(1) != [marker]:
                    pass
                break
        else:
            raise AssertionError("it was never caught at it")
        sink.close()


def serve_both(broker: WebBroker, name: str, sink: Peer) -> str:
    """A stranger, and the peer that comes over from the broker that stands still, are soon served; the last id."""
    began = time.monotonic()
    for each in (unique("stranger"), name):
        peer = Peer(broker, each, patience=SOON)
        marker = peer.say(sink)
        peer.peers()
        peer.close()
    assert time.monotonic() - began < SOON
    return marker
