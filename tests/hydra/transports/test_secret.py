"""The proof that both sides know the secret."""

from __future__ import annotations

import hashlib
import hmac

import pytest

from hydra.transports import secret
from hydra.transports.secret import Proof, SecretError

NONCE = bytes(range(32))
OTHER = bytes(range(100, 132))


def pair(ours: bytes = b"open sesame", theirs: bytes = b"open sesame") -> tuple[Proof, Proof]:
    """The proofs of the dialling and of the accepting side."""
    return Proof(ours, dialled=True, nonce=NONCE), Proof(theirs, dialled=False, nonce=OTHER)


def test_both_sides_prove_the_secret_and_the_dialling_side_first() -> None:
    dialled, accepted = pair()
    assert dialled.greeting == b"CHALLENGE %s\r\n" % NONCE.hex().encode()
    assert accepted.feed(dialled.greeting) == b""
    proof = dialled.feed(accepted.greeting)
    answer = accepted.feed(proof)
    assert accepted.proved
    assert not dialled.proved
    assert dialled.feed(answer) == b""
    assert dialled.proved


def test_a_proof_is_what_the_specification_says() -> None:
    dialled, accepted = pair(b"key", b"key")
    expected = hmac.new(b"key", b"hydra link\0dialled\0" + NONCE + OTHER, hashlib.sha256).hexdigest()
    assert dialled.feed(accepted.greeting) == f"PROOF {expected}\r\n".encode()
    expected = hmac.new(b"key", b"hydra link\0accepted\0" + NONCE + OTHER, hashlib.sha256).hexdigest()
    accepted.feed(dialled.greeting)
    assert accepted.feed(pair(b"key")[0].feed(accepted.greeting)) == f"PROOF {expected}\r\n".encode()


def test_any_pieces_and_both_ends_of_lines_will_do() -> None:
    dialled, accepted = pair()
    said = b"".join(dialled.feed(bytes([byte])) for byte in accepted.greeting)
    accepted.feed(dialled.greeting.replace(b"\r\n", b"\n").upper())
    answers = [accepted.feed(bytes([byte])) for byte in said]
    assert accepted.proved
    assert [bool(answer) for answer in answers] == [False] * (len(said) - 1) + [True]


def test_bytes_behind_the_proof_are_kept_for_the_node() -> None:
    dialled, accepted = pair()
    accepted.feed(dialled.greeting)
    answer = accepted.feed(dialled.feed(accepted.greeting) + b"KNOCK 1 a\r\nKN")
    assert accepted.rest == b"KNOCK 1 a\r\nKN"
    dialled.feed(answer + b"\xff" * 5000)
    assert dialled.rest == b"\xff" * 5000


def test_another_secret_is_not_taken_and_learns_nothing() -> None:
    dialled, accepted = pair(b"wrong")
    accepted.feed(dialled.greeting)
    with pytest.raises(SecretError, match="it knows another secret"):
        accepted.feed(dialled.feed(accepted.greeting))
    assert accepted.failed
    assert not accepted.proved


def test_the_dialled_side_must_know_the_secret_too() -> None:
    dialled, _ = pair()
    impostor = Proof(b"wrong", dialled=False, nonce=OTHER)
    dialled.feed(impostor.greeting)
    with pytest.raises(SecretError, match="it knows another secret"):
        dialled.feed(b"PROOF %s\r\n" % (b"00" * 32))
    assert not dialled.proved


def test_ones_own_challenge_coming_back_is_refused() -> None:
    dialled, _ = pair()
    with pytest.raises(SecretError, match="own challenge"):
        dialled.feed(dialled.greeting)


def test_ones_own_proof_coming_back_is_refused() -> None:
    dialled, accepted = pair()
    proof = dialled.feed(accepted.greeting)
    with pytest.raises(SecretError, match="it knows another secret"):
        dialled.feed(proof)


def test_a_proof_from_another_link_is_refused() -> None:
    dialled, accepted = pair()
    overheard = dialled.feed(accepted.greeting)
    again = Proof(b"open sesame", dialled=False, nonce=b"\1" * 32)
    again.feed(dialled.greeting)
    with pytest.raises(SecretError, match="it knows another secret"):
        again.feed(overheard)


@pytest.mark.parametrize("line", [b"KNOCK 12345 probe", b"", b"CHALLENGE", b"CHALLENGE 00", b"challenge " + b"00" * 32])
def test_any_other_line_is_refused(line: bytes) -> None:
    with pytest.raises(SecretError, match="without proving that it knows the secret"):
        pair()[1].feed(line + b"\r\n")


def test_a_proof_before_the_challenge_is_refused() -> None:
    with pytest.raises(SecretError, match="a PROOF out of turn"):
        pair()[1].feed(b"PROOF %s\r\n" % (b"00" * 32))


def test_a_second_challenge_is_refused() -> None:
    dialled, accepted = pair()
    accepted.feed(dialled.greeting)
    with pytest.raises(SecretError, match="a CHALLENGE out of turn"):
        accepted.feed(dialled.greeting)


def test_a_line_without_an_end_is_refused_before_it_costs_memory() -> None:
    _, accepted = pair()
    for _ in range(secret.MAX_LINE):
        assert accepted.feed(b"C") == b""
    with pytest.raises(SecretError, match="more than 76 bytes"):
        accepted.feed(b"C")


def test_after_a_failure_nothing_is_taken() -> None:
    dialled, accepted = pair()
    with pytest.raises(SecretError):
        accepted.feed(b"hello\n")
    assert accepted.feed(dialled.greeting) == b""
    assert accepted.failed


@pytest.mark.parametrize("nonce", [b"", NONCE + b"1"])
def test_a_challenge_has_32_bytes(nonce: bytes) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        Proof(b"secret", dialled=True, nonce=nonce)


def test_no_secret_is_no_secret() -> None:
    with pytest.raises(ValueError, match="a secret"):
        Proof(b"", dialled=True, nonce=NONCE)


def test_neither_line_is_taken_out_of_turn() -> None:
    dialled, accepted = pair()
    with pytest.raises(SecretError, match="it sent a PROOF out of turn"):
        accepted.feed(b"PROOF %s\r\n" % (b"00" * 32))
    dialled.feed(accepted.greeting)
    with pytest.raises(SecretError, match="it sent a CHALLENGE out of turn"):
        dialled.feed(accepted.greeting)
