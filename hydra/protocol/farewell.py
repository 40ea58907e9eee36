"""How a leader proves that it leaves: its heartbeats bear a digest, its last DROP what that is the digest of. No I/O.

docs/protocols/hydra.md, "Who drops a leader". A follower that believes in a leader's end pledges to another, so the
word of a third node does not do.
"""

from __future__ import annotations

import hashlib
import hmac
from random import Random
from typing import Final

#: Bytes of a proof and of its digest.
SIZE: Final = 16


def draw_proof(rng: Random) -> str:
    """What a leader keeps to itself until it leaves: 32 hexadecimal digits."""
    return f"{rng.getrandbits(SIZE * 8):0{SIZE * 2}x}"


def digest(proof: str) -> str:
    """What the leader's heartbeats bear: 32 hexadecimal digits."""
    return hashlib.blake2b(proof.encode(), digest_size=SIZE).hexdigest()


def proves(proof: str | None, announced: str) -> bool:
    """Whether this is what the digest was announced for."""
    return proof is not None and hmac.compare_digest(digest(proof), announced)
