"""daphne's timeouts: how long a connection may stay, and that one which cannot be checked affects no other."""

from __future__ import annotations

import subprocess
import sys

import pytest
from websockets.exceptions import ConnectionClosed

from brokersite.environment import CHECKOUT
from tests.peers.web.serving import running
from tests.waiting import PATIENCE

SCRIPT = """
import time, types, logging
logging.basicConfig()
import daphne.server
from peers.server import daphne as ours
ours.install()

class Aged(ours.DaphneProtocol):
    def __init__(self, own, timeout, accepted_within=None):
        self.socket_opened = time.time() - 100_000
        self.state = self.STATE_CONNECTING if accepted_within else self.STATE_OPEN
        self.last_ping = time.time()
        self.server = types.SimpleNamespace(
            websocket_timeout=timeout, websocket_connect_timeout=accepted_within, ping_interval=1000
        )
        self._own = own
        self.ended = False
    def serverClose(self):
        self.ended = True
    serverReject = serverClose
    def __hash__(self):
        return id(self)

class Broken:
    def check_timeouts(self):
        raise LookupError("as told")

later = []
peer, deliberate, plain = Aged(object(), 86_400), Aged(object(), 3600), Aged(None, 86_400)
held_up, limited = Aged(None, 86_400, 5), Aged(None, 86_400, 4)
server = daphne.server.Server.__new__(daphne.server.Server)
server.connections = {Broken(): 0, peer: 0, deliberate: 0, plain: 0, held_up: 0, limited: 0}
server.ws_factory = types.SimpleNamespace(reactor=types.SimpleNamespace(callLater=lambda *given: later.append(given)))
server.timeout_checker()
print(*[[one.ended for one in some] for some in ((peer, deliberate, plain), (held_up, limited))], len(later))
"""


@pytest.fixture(scope="module")
def checked() -> subprocess.CompletedProcess[str]:
    """A check of the timeouts, in a process of its own: daphne's reactor is chosen when it is imported."""
    return subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=CHECKOUT, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_peer_may_stay_for_longer_than_a_day_and_one_broken_connection_keeps_no_other_from_its_time_out(
    checked: subprocess.CompletedProcess[str],
) -> None:
    assert checked.stdout.startswith("[False, True, True] "), checked.stderr
    assert checked.stdout.endswith(" 1\n"), "the next check"
    assert "LookupError: as told" in checked.stderr


def test_a_client_that_connects_while_the_server_is_held_up_is_not_told_that_it_is_forbidden(
    checked: subprocess.CompletedProcess[str],
) -> None:
    assert "] [False, True] " in checked.stdout, checked.stderr


def test_a_peer_outlives_daphnes_default_limit_and_another_websocket_does_not() -> None:
    with (
        running("daphne", "--websocket_timeout", "2", DAPHNE_DEFAULT="2") as server,
        server.connect("stays") as peer,
        server.connect("", "/plain") as younger,
    ):
        with pytest.raises(ConnectionClosed):
            younger.recv(PATIENCE)
        peer.send("echo on")
        assert peer.recv(PATIENCE) == "on"


def test_a_limit_that_daphne_was_started_with_holds_for_peers_too() -> None:
    with (
        running("daphne", "--websocket_timeout", "2") as server,
        server.connect("ends") as peer,
        pytest.raises(ConnectionClosed),
    ):
        peer.recv(PATIENCE)
