r"""The proof that both ends of a link know the same secret (docs/protocols/hydra.md, "The secret"). No I/O.

    -> CHALLENGE 5f3c...    32 random bytes, in hexadecimal digits; both sides send theirs at once
    <- CHALLENGE 90b1...
    -> PROOF 77aa...        the dialling side proves first
    <- PROOF 13d0...

A proof is HMAC-SHA256, with the secret as its key, over `hydra link`, the prover's side (`dialled` or `accepted`), and
the challenges of the dialling and the accepting side, with a zero byte after each of the first two. So a proof is valid
for one link and one direction. The accepting side proves only to a side that has proved the secret: a client without it
gets nothing to try secrets on.

Neither side sends anything else before. Later lines are not protected: on a network that others can write to, use TLS
as well.
"""

from __future__ import annotations

import hmac
import re
from typing import Final, NoReturn

#: Bytes of a challenge.
NONCE_SIZE: Final = 32
MAX_LINE: Final = 76
r"""Bytes of the longest line of a proof, without its end (a CHALLENGE and `\r`, and one to spare)."""

_LINE: Final = re.compile(rb"(CHALLENGE|PROOF) ([0-9a-fA-F]{64})\r?", re.ASCII)


class SecretError(Exception):
    """The other side has not proved that it knows the secret; the message says why."""


class Proof:
    """One side's half. Send `greeting` at once, and what `feed` returns; then look at `proved` and `rest`."""

    def __init__(self, secret: bytes, *, dialled: bool, nonce: bytes) -> None:
        """`nonce`: 32 bytes drawn for this link by a cryptographic generator."""
        if not secret or len(nonce) != NONCE_SIZE:
            raise ValueError(f"a proof needs a secret and a challenge of {NONCE_SIZE} bytes")
        self._secret = secret
        self._dialled = dialled
        self._nonce = nonce
        self._other = b""
        self._pending = b""
        self.proved = False
        """Whether the other side knows the secret."""
        self.failed = False
        """Whether it does not, or has sent something else."""
        self.rest = b""
        """The bytes after the proof: the link's first."""

    @property
    def greeting(self) -> bytes:
        """The first line to send."""
        return b"CHALLENGE %s\r\n" % self._nonce.hex().encode()

    def feed(self, data: bytes) -> bytes:
        """Take bytes; returns the bytes to send. Raises SecretError: the link must be closed."""
        answer = b""
        self._pending += data
        while not (self.proved or self.failed):
            line, end, rest = self._pending.partition(b"\n")
            if len(line) > MAX_LINE:
                self._fail(f"it sent more than {MAX_LINE} bytes in a line before its proof")
            if not end:
                return answer
            self._pending = rest
            answer += self._take(line)
        self.rest, self._pending = self._pending, b""
        return answer

    def _take(self, line: bytes) -> bytes:
        match = _LINE.fullmatch(line)
        if match is None:
            self._fail("it began to speak without proving that it knows the secret; it may have none")
        kind, value = match[1], bytes.fromhex(match[2].decode())
        if kind != (b"PROOF" if self._other else b"CHALLENGE"):
            self._fail(f"it sent a {kind.decode()} out of turn")
        if not self._other:
            if hmac.compare_digest(value, self._nonce):
                self._fail("it sent this side's own challenge back")
            self._other = value
            return self._proof() if self._dialled else b""
        if not hmac.compare_digest(value, self._digest(dialled=not self._dialled)):
            self._fail("it knows another secret")
        self.proved = True
        return b"" if self._dialled else self._proof()

    def _proof(self) -> bytes:
        return b"PROOF %s\r\n" % self._digest(dialled=self._dialled).hex().encode()

    def _digest(self, *, dialled: bool) -> bytes:
        role = b"dialled" if dialled else b"accepted"
        nonces = (self._nonce, self._other) if self._dialled else (self._other, self._nonce)
        return hmac.digest(self._secret, b"\0".join((b"hydra link", role, b"".join(nonces))), "sha256")

    def _fail(self, reason: str) -> NoReturn:
        self.failed = True
        self._pending = b""
        raise SecretError(reason)
