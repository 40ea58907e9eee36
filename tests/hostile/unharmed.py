"""A check around a hostile client's actions: the node, the log and a neighbour are as before."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
from collections.abc import Callable, Iterator

import hypothesis

from tests.peers.running import Peer, WebBroker
from tests.waiting import PATIENCE
from tests.wire.broker import Address, Blip, Broker, Database

#: In the suite the same examples are drawn every time; HOSTILE_EXAMPLES=1000, as in `make soak`, draws so many others.
EXAMPLES = os.environ.get("HOSTILE_EXAMPLES")

drawn = hypothesis.settings(
    max_examples=int(EXAMPLES or 20),
    derandomize=EXAMPLES is None,
    database=None,
    suppress_health_check=[
        hypothesis.HealthCheck.function_scoped_fixture,
        hypothesis.HealthCheck.too_slow,
        hypothesis.HealthCheck.data_too_large,
        hypothesis.HealthCheck.large_base_example,
    ],
)


class Neighbour:
    """A client on its own connection, with a subscription of its own."""

    def __init__(self, broker: Broker) -> None:
        self._client = Blip(broker.blipmq)
        self._subscription = self._client.subscribe(b"neighbour")
        self._count = 0

    def served(self) -> None:
        """Publish a message, get it, acknowledge it: each is answered, on the connection that was there before."""
        self._count += 1
        body = b"%d" % self._count
        self._client.publish(b"neighbour", body)
        assert self._client.consume(self._subscription, 1) == [body]

    def close(self) -> None:
        self._client.close()


class PeerNeighbour:
    """A peer that was there before, and writes to itself."""

    def __init__(self, broker: WebBroker, name: str = "neighbour") -> None:
        self._peer = Peer(broker, name)

    def served(self) -> None:
        """Send a message, get it and acknowledge it, on the connection that was there before."""
        sent = self._peer.say(self._peer)
        self._peer.peers()
        while (letter := self._peer.get()).id != sent:
            self._peer.ack(letter.key)
        self._peer.ack(letter.key)
        self._peer.peers()

    def close(self) -> None:
        self._peer.close()


@contextlib.contextmanager
def unharmed(store: Database, log: Callable[[], str], served: Callable[[], None]) -> Iterator[None]:
    """Afterwards the nodes are the same, the log has no new traceback, and `served` serves a neighbour as before.

    `log` returns all that the process has logged; `served` raises if the neighbour is not served.
    """
    served()
    nodes, length = _nodes(store), len(log())
    yield
    served()
    assert _nodes(store) == nodes, "an engine started anew"
    assert "Traceback" not in log()[length:], log()[length:]


def _nodes(store: Database) -> list[tuple[int, ...]]:
    return store.rows("select id from queues_node order by id")


def exchange(address: Address, data: bytes) -> bytes:
    """Connect, send `data` and an end of stream; all that is answered until the other side closes too, be it by a
    reset. Reads while it sends, so that no size of either can block it."""
    received = bytearray()
    with socket.create_connection(address, PATIENCE) as connection, selectors.DefaultSelector() as selector:
        connection.setblocking(False)
        selector.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE)
        left = memoryview(data)
        with contextlib.suppress(OSError):  # also ENOTCONN, where the end comes before the shutdown
            while True:
                events = selector.select(PATIENCE)
                assert events, f"neither read from nor answered, with {len(left)} bytes to send"
                if events[0][1] & selectors.EVENT_READ:
                    if not (more := connection.recv(1 << 20)):
                        break
                    received += more
                elif left:
                    left = left[connection.send(left[: 1 << 20]) :]
                    if not left:
                        connection.shutdown(socket.SHUT_WR)
                        selector.modify(connection, selectors.EVENT_READ)
                else:
                    connection.shutdown(socket.SHUT_WR)
                    selector.modify(connection, selectors.EVENT_READ)
    return bytes(received)
