"""TLS around a client's core, without any I/O: against OpenSSL's own server side, in pieces of every size."""

import ssl
from pathlib import Path

import pytest

from tests.wire.client.test_drivers import Echoes
from tests.wire.net.test_tls import Authority
from wire.client.errors import ConnectionLost, ReplyTimeout, TlsFailed
from wire.client.protocol import TlsCore, over_tls
from wire.net.tls import server_context


class Peer:
    """The broker's side of a TLS connection in memory."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.arrived, self.leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.arrived, self.leaving, server_side=True)
        self.established = False

    def exchange(self, core: TlsCore, piece: int = 1 << 20) -> None:
        """Carry bytes to and fro, in pieces of at most this size, until both sides are quiet."""
        while core.outgoing or self.leaving.pending:
            self.arrived.write(bytes(core.outgoing))
            core.outgoing.clear()
            if not self.established:
                try:
                    self.tls.do_handshake()
                    self.established = True
                except ssl.SSLWantReadError:
                    pass
            while data := self.leaving.read(piece):
                core.receive_data(data)

    def read(self) -> bytes:
        data = b""
        try:
            while chunk := self.tls.read(1 << 20):
                data += chunk
        except ssl.SSLWantReadError:
            pass
        return data


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def inner() -> Echoes:
    return Echoes()


@pytest.fixture(params=[ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["TLS 1.2", "TLS 1.3"])
def core(authority: Authority, inner: Echoes, request: pytest.FixtureRequest) -> TlsCore:
    context = ssl.create_default_context(cafile=str(authority.file))
    context.minimum_version = context.maximum_version = request.param
    return TlsCore(inner, context, "localhost")


@pytest.fixture
def peer(authority: Authority) -> Peer:
    return Peer(server_context(*authority.issue("server")))


def shake_hands(core: TlsCore, peer: Peer, piece: int = 1 << 20) -> None:
    steps = core.handshake(7)
    assert next(steps) == 7
    peer.exchange(core, piece)
    with pytest.raises(StopIteration):
        steps.send(True)


@pytest.mark.parametrize("piece", [1, 5, 1 << 20])
def test_bytes_cross_in_both_directions_whatever_pieces_they_come_in(
    core: TlsCore, inner: Echoes, peer: Peer, piece: int
) -> None:
    shake_hands(core, peer, piece)
    question = b"question" * 10_000
    inner.outgoing += question
    peer.exchange(core, piece)
    assert peer.read() == question
    assert inner.outgoing == b""
    peer.tls.write(b"answer" * 10_000)
    peer.exchange(core, piece)
    assert inner.received == b"answer" * 10_000


def test_nothing_of_the_core_leaves_before_the_handshake_is_done(core: TlsCore, inner: Echoes, peer: Peer) -> None:
    inner.outgoing += b"question"
    next(core.handshake(7))
    assert b"question" not in core.outgoing
    assert inner.outgoing == b"question"
    peer.exchange(core)
    assert peer.read() == b"question"


def test_a_handshake_that_is_not_answered_is_given_up(core: TlsCore) -> None:
    steps = core.handshake(7)
    next(steps)
    with pytest.raises(ReplyTimeout, match=r"^no answer in the TLS handshake for 7 s$"):
        steps.send(False)


def test_an_answer_before_the_end_is_taken_and_the_end_told(core: TlsCore, inner: Echoes, peer: Peer) -> None:
    shake_hands(core, peer)
    peer.tls.write(b"answer")
    with pytest.raises(ssl.SSLWantReadError):
        peer.tls.unwrap()
    with pytest.raises(ConnectionLost, match=r"^the broker closed the connection$"):
        core.receive_data(peer.leaving.read())
    assert inner.received == b"answer"


def test_the_own_end_comes_behind_all_that_was_to_be_sent_and_answers_are_still_heard(
    core: TlsCore, inner: Echoes, peer: Peer
) -> None:
    shake_hands(core, peer)
    inner.outgoing += b"last words"
    core.finish()
    peer.tls.write(b"answer")
    peer.arrived.write(bytes(core.outgoing))
    core.outgoing.clear()
    assert peer.tls.read(100) == b"last words"
    core.receive_data(peer.leaving.read())
    assert inner.received == b"answer"
    assert peer.tls.read(100) == b""  # TLS's end, not only the connection's
    peer.tls.unwrap()
    with pytest.raises(ConnectionLost, match=r"^the broker closed the connection$"):
        core.receive_data(peer.leaving.read())


def test_nothing_is_sent_after_the_own_end(core: TlsCore, inner: Echoes, peer: Peer) -> None:
    shake_hands(core, peer)
    core.finish()
    core.outgoing.clear()
    inner.outgoing += b"too late"
    assert core.outgoing == b""


def test_a_damaged_record_ends_the_connection(core: TlsCore, inner: Echoes, peer: Peer) -> None:
    shake_hands(core, peer)
    peer.tls.write(b"answer")
    record = bytearray(peer.leaving.read())
    record[-1] ^= 1
    # The second is OpenSSL's from version 3.5 on.
    why = "^no TLS with the broker: (decryption failed or bad record mac|record layer failure)$"
    with pytest.raises(TlsFailed, match=why):
        core.receive_data(bytes(record))
    assert inner.received == b""
    alert = bytes(core.outgoing)
    assert alert  # it tells the broker
    inner.outgoing += b"and more"
    assert core.outgoing == alert


def test_the_end_before_the_handshake_is_done_sends_nothing_in_the_clear(core: TlsCore, inner: Echoes) -> None:
    inner.outgoing += b"secret"
    core.finish()
    assert b"secret" not in core.outgoing


def test_without_a_context_nothing_is_wrapped() -> None:
    inner = Echoes()
    assert over_tls(inner, None, "localhost", None) is inner
    with pytest.raises(ValueError, match=r"^server_hostname means something only together with tls$"):
        over_tls(inner, None, "localhost", "other")


# Refusals.


@pytest.mark.parametrize(
    ("other", "words"),
    [(False, "certificate required"), (True, "unknown ca")],
    ids=["no certificate", "of another authority"],
)
def test_a_refused_client_certificate_is_told_in_the_brokers_words(
    authority: Authority, inner: Echoes, tmp_path: Path, other: bool, words: str
) -> None:
    peer = Peer(server_context(*authority.issue("server"), client_ca=authority.file))
    context = ssl.create_default_context(cafile=str(authority.file))
    if other:
        context.load_cert_chain(*Authority(tmp_path, "other").issue("worker-7"))
    core = TlsCore(inner, context, "localhost")
    steps = core.handshake(7)
    next(steps)
    with pytest.raises(ssl.SSLError):
        peer.exchange(core)
    with pytest.raises(TlsFailed, match=f"^the broker refuses this TLS connection: {words}$"):
        core.receive_data(peer.leaving.read())


def test_an_end_without_words_is_a_refusal_until_the_broker_has_gone_on_after_the_handshake(
    core: TlsCore, authority: Authority, peer: Peer
) -> None:
    within = core.ended("it hung up")
    assert isinstance(within, TlsFailed)
    assert str(within).startswith("it hung up within the TLS handshake: ")
    shake_hands(core, peer)
    peer.tls.write(b"answer")
    peer.exchange(core)
    after = core.ended("it hung up")
    assert type(after) is ConnectionLost
    assert str(after) == "it hung up"


def test_in_tls_13_an_end_without_words_right_after_the_handshake_is_a_refusal(
    authority: Authority, inner: Echoes, peer: Peer
) -> None:
    core = TlsCore(inner, ssl.create_default_context(cafile=str(authority.file)), "localhost")
    next(core.handshake(7))
    peer.arrived.write(bytes(core.outgoing))
    with pytest.raises(ssl.SSLWantReadError):
        peer.tls.do_handshake()
    core.receive_data(peer.leaving.read())
    ended = core.ended("it hung up")
    assert isinstance(ended, TlsFailed)
    assert str(ended).startswith("it hung up after the TLS handshake: ")
