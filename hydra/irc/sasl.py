"""Logging in to an account before the server's welcome: CAP and SASL (IRCv3). No I/O.

    CAP LS 302 -> CAP * LS :sasl=PLAIN,EXTERNAL -> CAP REQ :sasl -> CAP * ACK :sasl -> AUTHENTICATE PLAIN
    -> AUTHENTICATE + -> AUTHENTICATE (base64) -> 903 -> CAP END -> 001
"""

from __future__ import annotations

from base64 import b64encode
from typing import Final

from irc.client import Event  # type: ignore[import-untyped]

from hydra.irc.events import code_of, event_text
from hydra.irc.settings import IrcAccount, Mechanism

#: Sent before NICK and USER: the server waits with its welcome until CAP END.
BEGIN: Final = "CAP LS 302"
_CAPABILITY: Final = "sasl"
#: Characters of an answer that go in one line.
_CHUNK: Final = 400
_SUCCESS: Final = frozenset({"903", "907"})
_FAILURES: Final = frozenset({"902", "904", "905", "906", "908"})


class LoginFailed(Exception):
    """The client cannot log in; the message says why."""


class Login:
    """One client's login on one connection."""

    def __init__(self, account: IrcAccount) -> None:
        self._account = account
        self._offered: list[str] = []
        #: Whether the server has accepted it.
        self.done = False

    def take(self, event: Event) -> list[str]:
        """The lines that answer an event. Raises LoginFailed."""
        code = code_of(event).upper()
        if code == "CAP":
            return self._capability(event.arguments)
        if code == "AUTHENTICATE":
            return [f"AUTHENTICATE {each}" for each in self._answer()] if event.target == "+" else []
        if code in _SUCCESS:
            self.done = True
            return ["CAP END"]
        if code in _FAILURES:
            raise LoginFailed(f"the server refuses to log in {self._account}: {code} {event_text(event)}")
        if (code == "421" and "CAP" in event.arguments) or (code == "001" and not self.done):
            raise LoginFailed("the server knows no SASL")
        return []

    def _capability(self, words: list[str]) -> list[str]:
        kind = words[0].upper() if words else ""
        if kind == "LS":
            self._offered += words[-1].split()
            return [] if words[1:2] == ["*"] and len(words) > 2 else [self._request()]
        if kind == "ACK" and _CAPABILITY in words[-1].split():
            return [f"AUTHENTICATE {self._account.mechanism}"]
        if kind == "NAK" or (kind == "DEL" and _CAPABILITY in words[-1].split()):
            raise LoginFailed("the server refuses SASL")
        return []

    def _request(self) -> str:
        offered = dict(each.partition("=")[::2] for each in self._offered)
        mechanisms = offered.get(_CAPABILITY)
        if mechanisms is None:
            raise LoginFailed("the server offers no SASL now: its accounts may be away")
        if mechanisms and self._account.mechanism not in mechanisms.upper().split(","):
            raise LoginFailed(f"the server offers SASL with {mechanisms}, not {self._account.mechanism}")
        return f"CAP REQ :{_CAPABILITY}"

    def _answer(self) -> list[str]:
        """What PLAIN (RFC 4616) and EXTERNAL (RFC 4422) say, in base64, in lines; `+` for nothing more."""
        account = self._account
        words = "" if account.mechanism is Mechanism.EXTERNAL else f"{account.name}\0{account.name}\0{account.password}"
        text = b64encode(words.encode()).decode()
        chunks = [text[at : at + _CHUNK] for at in range(0, len(text), _CHUNK)]
        return chunks if chunks and len(chunks[-1]) < _CHUNK else [*chunks, "+"]
