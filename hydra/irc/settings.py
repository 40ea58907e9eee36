"""The IRC server, user and times of a node's connection."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from wire.net.address import HostPort

#: Bytes of a nick, a channel, a password or another word of a registration; servers allow far fewer.
MAX_NAME: Final = 200


class IrcSettingsError(ValueError):
    """A nick, channel, password or time is invalid; the message says which, and why."""


@dataclass(frozen=True, slots=True)
class IrcServer(HostPort):
    """A server of an IRC network."""

    tls: ssl.SSLContext | None = None
    password: str = ""
    """Sent with PASS unless empty."""

    def __post_init__(self) -> None:
        _check_text("a password", self.password)


class Mechanism(StrEnum):
    """How a client proves that an account is its own (SASL)."""

    PLAIN = "PLAIN"
    """By the account's password."""
    EXTERNAL = "EXTERNAL"
    """By the certificate that it has shown in TLS."""


@dataclass(frozen=True, slots=True)
class IrcAccount:
    """A client's account with the network's services."""

    mechanism: Mechanism
    name: str
    password: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        _check_word("an account", self.name)
        _check_text("an account's password", self.password)
        if self.mechanism is Mechanism.PLAIN and not self.password:
            raise IrcSettingsError(f"the password of the account {self.name} is missing")

    def __str__(self) -> str:
        return f"the account {self.name} by {self.mechanism}"


@dataclass(frozen=True, slots=True)
class IrcUser:
    """A client's nick, names and channels."""

    nick: str
    channels: Sequence[str] = ()
    """Channels to join: `#name`, or `#name key`."""
    username: str = "hydra"
    realname: str = "Hydra"
    other_nicks: bool = True
    """Whether to take another nick if this one is in use."""
    account: IrcAccount | None = None
    """The account to log in to before the server's welcome."""

    def __post_init__(self) -> None:
        check_nick(self.nick)
        for channel in self.channels:
            _check_channel(channel)
        _check_word("a user name", self.username)
        _check_text("a real name", self.realname)


@dataclass(frozen=True, slots=True)
class IrcTimes:
    """The connection's times in seconds, and its pace."""

    refused: float = 10.0
    """Until the next attempt after the server has refused this client, its nick or its account; then longer."""
    refused_most: float = 300.0
    """The longest such time."""
    connect: float = 10.0
    """For the TCP connection and TLS."""
    register: float = 30.0
    """From then to the server's welcome."""
    ping: float = 30.0
    """Between two PINGs of this client."""
    silence: float = 90.0
    """Silence after which a server counts as dead."""
    join: float = 30.0
    """After which a channel that could not be joined is tried again."""
    rejoin: float = 3.0
    """After which a channel is joined again from which this client was kicked."""
    burst: int = 5
    """Lines sent at once after a pause."""
    interval: float = 2.0
    """Between two further lines; 0: as fast as the server reads."""
    queue: int = 1000
    """Lines that may wait to be sent."""


def check_nick(nick: str) -> None:
    """Raise IrcSettingsError for a text that no server takes as a nick."""
    _check_word("a nick", nick)
    if nick[0] in "#&+!:$~0123456789-" or any(each in nick for each in "!@*?,"):
        raise IrcSettingsError(f"{nick!r} is no nick: write letters, digits and -_[]{{}}\\`^|, beginning with a letter")


def _check_channel(text: str) -> None:
    name, _, key = text.partition(" ")
    _check_word("a channel", name)
    if name[0] not in "#&+!" or "," in name:
        raise IrcSettingsError(f"{name!r} is no channel: write one that begins with #, &, + or !, without a comma")
    if key:
        _check_word("a channel's key", key)
        if key.startswith(":") or "," in key:
            raise IrcSettingsError(f"the key of channel {name} must not begin with a colon nor have a comma in it")


def _check_word(what: str, text: str) -> None:
    _check_text(what, text)
    if not text or " " in text:
        raise IrcSettingsError(f"{what} must be one word, not {text!r}")


def _check_text(what: str, text: str) -> None:
    if not text.isprintable():
        raise IrcSettingsError(f"{what} must not have control characters in it")
    if len(text.encode()) > MAX_NAME:
        raise IrcSettingsError(f"{what} must not have more than {MAX_NAME} bytes")
