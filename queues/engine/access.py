"""Who may do what: API keys as the engine knows them."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

#: Remembered answers of each kind for a key; more are worked out anew.
MOST_REMEMBERED = 1000


def key_digest(key: str, secret: str) -> str:
    """What is stored of a key: an HMAC, so that a stolen table without the site's secret gives nothing away."""
    pepper = hashlib.sha256(b"fivewire api key\0" + secret.encode()).digest()
    return hmac.new(pepper, key.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


@dataclass(frozen=True, slots=True)
class Grant:
    """An accepted API key. No protocol means any; patterns are globs over names of queues and topics."""

    id: int
    name: str
    protocols: tuple[str, ...]
    publish: tuple[str, ...]
    consume: tuple[str, ...]
    manage: tuple[str, ...]
    _answers: dict[tuple[str, bytes], bool] = field(default_factory=dict, compare=False)

    def for_protocol(self, protocol: str) -> bool:
        """Whether the key is good for this protocol."""
        return not self.protocols or protocol in self.protocols

    def may(self, action: str, name: bytes) -> bool:
        """Whether the key allows `action` ("publish", "consume" or "manage") on a queue or topic."""
        known = self._answers.get((action, name))
        if known is None:
            patterns: tuple[str, ...] = getattr(self, action)
            text = name.decode("utf-8", "replace")
            known = any(fnmatchcase(text, pattern) for pattern in patterns)
            if len(self._answers) < MOST_REMEMBERED:
                self._answers[action, name] = known
        return known
