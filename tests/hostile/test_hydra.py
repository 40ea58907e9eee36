"""Hydra: strangers, members and an IRC server that send what none should. The node goes on, and so do its links."""

from __future__ import annotations

import contextlib
import itertools
import socket
from collections.abc import Iterator
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydra.protocol.codec import MAX_LINE
from hydra.protocol.times import Times
from tests.hostile.pulse import Pulse
from tests.hostile.unharmed import drawn, exchange, unharmed
from tests.hostile.values import NOT_UTF8, TIMES, integers, octets, texts
from tests.hydra.network.nodes import Network, Node
from tests.hydra.network.probe import Probe
from tests.waiting import PATIENCE, wait_until
from tests.wire.broker import Database

#: No member is dropped, and a leader's lease does not end, however slow the machine is.
SLOW: Final = Times(max_ping=600.0, max_vote_min=0.2, max_vote_max=0.6, max_meet=60.0)
#: A connection to IRC that is lost is made again within a second.
QUICK: Final = Times(max_ping=3.0, max_vote_min=0.2, max_vote_max=0.6, max_meet=3.0)
#: Bytes of a drawn session, which Hypothesis can still show; the kept cases are larger.
LONGEST: Final = 7_000
NEIGHBOUR: Final = 3_141_592_653
PULSE: Final = 1_414_213_562
LIAR: Final = 2_718_281_828

_marks = itertools.count(1)

WORDS: Final = integers(-1, 2**64).map(str) | texts(3000) | st.sampled_from((str(LIAR), "0", "4294967295", ""))
COMMANDS: Final = "PING PONG RECV SEND DROP NOMINATE PLEDGE CALL ELECT KNOCK MEET WELCOME HELLO ASK NOTHING"
NAMES: Final = st.sampled_from(tuple(COMMANDS.split(" ")))
KEYS: Final = st.sampled_from(("0123456789abcdef", "f" * 16, "0" * 32, "3.7:0123456789abcdef", "1.9223372036854775807"))
ATTRIBUTE_NAMES: Final = "voter next electorate stamp irc term first message leave proof other"
ATTRIBUTES: Final = st.lists(
    st.builds(lambda name, value: f"{name}={value}", st.sampled_from(tuple(ATTRIBUTE_NAMES.split(" "))), KEYS | WORDS),
    max_size=4,
)
LINES: Final = st.builds(
    lambda given, name, words, end, times: (
        ((f"@{';'.join(given)} " if given else "") + " ".join([name, *words]) + end).encode() * times
    ),
    ATTRIBUTES, NAMES, st.lists(WORDS, max_size=4), st.sampled_from(("\r\n", "\n")), TIMES,
)  # fmt: skip
PIECES: Final = st.lists(LINES | octets(5000), max_size=6).map(lambda parts: b"".join(parts)[:LONGEST])

IRC_WORDS: Final = texts(1000) | st.sampled_from(
    ("fivewire", "#hydra", ":", "*", "@a=b", ":a!b@c", "001", "433", "465")
)
IRC_VERBS: Final = "PRIVMSG JOIN PART NICK KICK MODE TOPIC NOTICE QUIT PING 353 366 473 :x!y@z"
IRC_COMMANDS: Final = tuple(IRC_VERBS.split(" "))
IRC_LINES: Final = st.builds(
    lambda words, end: " ".join(words).encode() + end,
    st.lists(st.sampled_from(IRC_COMMANDS) | IRC_WORDS, max_size=5),
    st.sampled_from((b"\r\n", b"\n", b"\r")),
)

#: Inputs that once did harm, or might.
CASES: Final = {
    "a POST of a web page": b"POST / HTTP/1.1\r\nHost: a\r\n\r\nKNOCK 1 page\r\nSEND 1 PRIVMSG #c :from a page\r\n",
    "a TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    "the longest line": b"KNOCK 7 " + b"x" * (MAX_LINE - 8) + b"\r\n",
    "a line one byte over the longest": b"KNOCK 7 " + b"x" * (MAX_LINE - 7) + b"\r\n",
    "the longest line, in characters of four bytes": "KNOCK 7 {}\r\n".format("😀" * ((MAX_LINE - 8) // 4)).encode(),
    "half a line": b"KNOCK 7 prob",
    "NUL": b"\0" * 100_000,
    "no UTF-8": b"KNOCK 7 " + b" ".join(NOT_UTF8) + b"\r\n",
    "5000 knocks": b"".join(b"KNOCK %d flood@%016x\r\n" % (number, number) for number in range(1, 5001)),
    "the greatest numbers": b"PING 9223372036854775807 x 4294967295\r\nRECV 9223372036854775807 JOIN #c\r\n",
    "members that there are not": b"".join(
        b"@voter=%016x PONG x %d 9223372036854775807 ghost\r\n" % (number, number) for number in range(1, 3000)
    ),
    "lines of no leader": b"".join(b"@term=1 RECV %d PRIVMSG #c :%s\r\n" % (n, b"x" * 1800) for n in range(2000)),
    "lines for IRC with NUL": b"SEND 2718281828 PRIVMSG #c :\0\r\nSEND 2718281828 PRIVMSG #c :a\rQUIT\r\n",
}  # fmt: skip


@pytest.fixture(scope="module")
def network(store: Database) -> Iterator[Network]:
    with Network(store, times=SLOW, BROKER_HYDRA_MAX_DISCONNECTS=100_000) as network:
        yield network


@pytest.fixture(scope="module")
def node(network: Network) -> Node:
    """A node that listens on TCP and UDP, and has let in a liar and a neighbour."""
    listen = ("--listen", "127.0.0.1:0", "--listen", "udp://127.0.0.1:0")
    return network.start("reached", *listen).wait_ready()


@pytest.fixture(scope="module")
def neighbours(node: Node) -> Iterator[tuple[Probe, Probe]]:
    """Two members, on links of their own: one is looked at before and after each test, one all the while."""
    with (
        liar(node) as first,
        member(node, NEIGHBOUR, first) as neighbour,
        member(node, PULSE, first, neighbour) as pulse,
    ):
        yield neighbour, pulse


@pytest.fixture
def neighbour(neighbours: tuple[Probe, Probe]) -> Probe:
    return neighbours[0]


@pytest.fixture
def nothing_else_harmed(node: Node, neighbours: tuple[Probe, Probe], store: Database) -> Iterator[None]:
    """Around a test: the process, the node and its log are as before, its neighbour is answered, and another is in time
    meanwhile."""
    before, (neighbour, pulse) = identity(store), neighbours
    with (
        unharmed(store, lambda: node.log, lambda: served(neighbour)),
        Pulse(lambda: served(pulse), store, node.process.pid),
    ):
        yield
    assert identity(store) == before
    assert node.alive


def tcp(node: Node) -> tuple[str, int]:
    return "127.0.0.1", int(node.addresses[0].rpartition(":")[2])


def identity(store: Database) -> list[tuple[object, ...]]:
    return store.rows("select name, id, run, voter from hydra_node order by id")


def heard(probe: Probe, beginning: bytes) -> None:
    """Wait for a line; what others say comes by this link, too."""
    while not (line := probe.take()).startswith(beginning):
        assert line, f"the link is over, and {beginning!r} has not come"


def served(neighbour: Probe) -> None:
    """A member that knocks is answered, on the link that was there before."""
    neighbour.send(f"KNOCK {neighbour.id} neighbour")
    heard(neighbour, b"WELCOME %d" % neighbour.id)


def member(node: Node, id: int, *others: Probe) -> Probe:
    """A link of a member, which these others have met."""
    probe = Probe(socket.create_connection(tcp(node), PATIENCE), id=id)
    probe.send(f"KNOCK {id} neighbour")
    for other in others:
        heard(other, b"KNOCK %d" % id)
        other.send(f"MEET {id} {other.id}")
    heard(probe, b"HELLO")
    return probe


def liar(node: Node) -> Probe:
    """A member of the network, on a link that has joined."""
    probe = Probe(socket.create_connection(tcp(node), PATIENCE), id=LIAR)
    probe.send(f"KNOCK {LIAR} liar")
    heard(probe, b"HELLO")
    return probe


@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("nothing_else_harmed")
class TestKeptCases:
    def test_a_stranger_harms_no_node(self, node: Node, name: str) -> None:
        exchange(tcp(node), CASES[name])

    def test_a_stranger_by_datagrams_harms_no_node(self, node: Node, name: str) -> None:
        datagrams(node, CASES[name])

    def test_a_member_harms_no_node(self, node: Node, name: str) -> None:
        exchange(tcp(node), b"KNOCK %d liar\r\n" % LIAR + CASES[name])


@pytest.mark.usefixtures("nothing_else_harmed")
class TestDrawnSessions:
    @drawn
    @given(PIECES)
    def test_a_stranger_harms_no_node(self, node: Node, neighbour: Probe, data: bytes) -> None:
        exchange(tcp(node), data)
        served(neighbour)

    @drawn
    @given(PIECES)
    def test_a_stranger_by_datagrams_harms_no_node(self, node: Node, neighbour: Probe, data: bytes) -> None:
        datagrams(node, data)
        served(neighbour)

    @drawn
    @given(PIECES)
    def test_a_member_harms_no_node(self, node: Node, neighbour: Probe, data: bytes) -> None:
        exchange(tcp(node), b"KNOCK %d liar\r\n" % LIAR + data)
        served(neighbour)


def datagrams(node: Node, data: bytes) -> None:
    """Send it in pieces as large as a datagram can be, the first one alone, too."""
    to = ("127.0.0.1", int(node.addresses[1].rpartition(":")[2]))
    with socket.socket(type=socket.SOCK_DGRAM) as sock:
        for size in (1400, 60_000):
            for start in range(0, min(len(data), 600_000), size):
                with contextlib.suppress(ConnectionError):
                    sock.sendto(data[start : start + size], to)


class IrcSide:
    """An IRC server that one node connects to, in the test's hands."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(PATIENCE)
        self.address = self.listener.getsockname()
        self._client: socket.socket | None = None

    def client(self) -> socket.socket:
        """The node's connection, registered and in its channel."""
        while self._client is None:
            client = self.listener.accept()[0]
            client.settimeout(PATIENCE)
            with contextlib.suppress(OSError):
                lines = client.makefile("rb")
                nick = b""
                while not (line := lines.readline()).startswith(b"USER"):
                    nick = line.split()[1] if line.startswith(b"NICK") else nick
                client.sendall(b":here 001 %s :welcome\r\n" % nick)
                while not lines.readline().startswith(b"JOIN"):
                    pass
                client.sendall(b":%s!u@h JOIN :#hydra\r\n" % nick)
                self._client = client
        return self._client

    def send(self, data: bytes) -> None:
        """Send this to the node; the next one is another connection if it ends this one."""
        with contextlib.suppress(OSError):
            self.client().sendall(data)

    def is_over(self) -> bool:
        """Whether the node has ended its connection."""
        client = self.client()
        client.setblocking(False)
        try:
            while client.recv(65536):
                pass
        except BlockingIOError:
            client.settimeout(PATIENCE)
            return False
        except OSError:
            pass
        self.close()
        return True

    def close(self) -> None:
        """Forget the node's connection."""
        if self._client is not None:
            self._client.close()
            self._client = None


@pytest.fixture(scope="module")
def irc_side(store: Database) -> Iterator[tuple[Node, IrcSide]]:
    """A node that leads, and the IRC server that it speaks to."""
    side = IrcSide()
    with Network(store, irc=side.address, times=QUICK) as network:
        node = network.start("speaks")
        side.client()
        yield node, side
    side.close()
    side.listener.close()


def passes_on(side: IrcSide, store: Database) -> None:
    """A line from the IRC server still reaches the durable queue, over a connection made anew if need be."""
    mark = f"mark {next(_marks)} of the neighbour"

    def arrived() -> bool:
        if side.is_over() or not arrived.sent:  # type: ignore[attr-defined]
            side.send(f"\r\n:ann!a@b PRIVMSG #hydra :{mark}\r\n".encode())
            arrived.sent = True  # type: ignore[attr-defined]
        query = "select count(*) from queues_openmessage where payload = %s"
        return bool(store.value(query, f":ann!a@b PRIVMSG #hydra :{mark}".encode()))

    arrived.sent = False  # type: ignore[attr-defined]
    wait_until(arrived, "a line from IRC in the queue")


IRC_CASES: Final = {
    "a line that does not end": b"x" * 20_000,
    "no UTF-8": b":a!b@c PRIVMSG #hydra :" + b" ".join(NOT_UTF8) + b"\r\n",
    "NUL": b":a!b@c PRIVMSG #hydra :\0\r\n",
    "the longest line": b":a!b@c PRIVMSG #hydra :" + b"x" * 1877 + b"\r\n",
    "tags without end": b"@" + b"a=b;" * 2000 + b" :a!b@c PRIVMSG #hydra :x\r\n",
    "no arguments": b":a!b@c PRIVMSG\r\n:a!b@c JOIN\r\n:a!b@c KICK\r\n:a!b@c NICK\r\n:a!b@c 001\r\n433\r\n",
    "another nick": b":fivewire!u@h NICK :" + b"n" * 400 + b"\r\n",
    "kicked 200 times": b":a!b@c KICK #hydra fivewire :out\r\n" * 200,
    "an error": b"ERROR :closing link\r\n",
    "5000 lines": b":a!b@c PRIVMSG #hydra :flood\r\n" * 5000,
}  # fmt: skip


@pytest.mark.parametrize("name", IRC_CASES)
def test_an_irc_server_harms_no_node(irc_side: tuple[Node, IrcSide], store: Database, name: str) -> None:
    node, side = irc_side
    with unharmed(store, lambda: node.log, lambda: passes_on(side, store)):
        side.send(IRC_CASES[name])
    assert node.alive


@drawn
@given(st.lists(IRC_LINES | octets(3000), max_size=6).map(lambda parts: b"".join(parts)[:LONGEST]))
def test_a_drawn_irc_server_harms_no_node(irc_side: tuple[Node, IrcSide], store: Database, data: bytes) -> None:
    node, side = irc_side
    with unharmed(store, lambda: node.log, lambda: passes_on(side, store)):
        side.send(data)
    assert node.alive
