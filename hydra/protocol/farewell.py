"""The proof that a leader leaves: its heartbeats carry a digest, its last DROP the text of that digest. No I/O.

docs/protocols/hydra.md, "Who drops a leader". Followers of a leader that has left pledge to another at once, so a third
node's word must not suffice.
"""

from __future__ import annotations

import hashlib
import hmac
from random import Random
from typing import Final

#: Bytes of a proof and of its digest.
SIZE: Final = 16


def draw_proof(rng: Random) -> str:
    """A leader's secret until it leaves: 32 hexadecimal digits."""
    return f"{rng.getrandbits(SIZE * 8):0{SIZE * 2}x}"


def digest(proof: str) -> str:
    """The proof's digest in heartbeats: 32 hexadecimal digits."""
    return hashlib.blake2b(proof.encode(), digest_size=SIZE).hexdigest()


def proves(proof: str | None, announced: str) -> bool:
    """Whether a proof matches the announced digest."""
    return proof is not None and hmac.compare_digest(digest(proof), announced)
