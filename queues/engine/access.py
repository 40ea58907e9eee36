"""API keys as the engine knows them, with their grants."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field

from queues.permissions.rules import LISTS, Operation, Protocol, covers, is_allowed

#: Remembered answers for a key; more are worked out anew.
MAX_REMEMBERED = 1000
#: Bytes of the longest name whose answer is remembered.
MAX_REMEMBERED_NAME = 1024


def key_digest(key: str, pepper: str) -> str:
    """The digest of a key that is stored: an HMAC, so that a stolen table without the pepper gives nothing away."""
    secret = hashlib.sha256(b"fivewire api key\0" + pepper.encode()).digest()
    return hmac.new(secret, key.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


@dataclass(frozen=True, slots=True)
class Grant:
    """An accepted API key. No protocol means any; patterns are globs over names of queues and topics."""

    id: int
    name: str
    protocols: tuple[str, ...]
    publish: tuple[str, ...]
    consume: tuple[str, ...]
    manage: tuple[str, ...]
    _answers: dict[tuple[str, str, str, bytes], bool] = field(default_factory=dict, compare=False, repr=False)

    def for_protocol(self, protocol: str) -> bool:
        """Whether the key is good for this protocol."""
        return not self.protocols or protocol in self.protocols

    def may(self, protocol: Protocol, operation: Operation, address: str, name: bytes) -> bool:
        """Whether the protocol reaches a "queue", "topic" or "peer" of this name, and the key covers it."""
        asked = protocol, operation, address, name
        known = self._answers.get(asked)
        if known is None:
            text = name.decode("utf-8", "replace")
            known = is_allowed(protocol, operation, address, text) and any(
                covers(getattr(self, patterns), address, text) for patterns in LISTS[operation]
            )
            if len(self._answers) < MAX_REMEMBERED and len(name) <= MAX_REMEMBERED_NAME:
                self._answers[asked] = known
        return known


#: The grant of a client without a key.
ANONYMOUS = Grant(0, "", (), ("*",), ("*",), ("*",))
NOTHING = Grant(0, "", (), (), (), ())
