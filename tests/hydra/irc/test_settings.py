"""Validation of nick, channel and the other settings of IRC."""

from __future__ import annotations

import pytest

from hydra.irc.settings import IrcServer, IrcSettingsError, IrcUser


@pytest.mark.parametrize("nick", ["alpha", "Alpha_2", "[a]`^{}|\\", "_x", "größe"])
def test_a_nick_may_be(nick: str) -> None:
    assert IrcUser(nick).nick == nick


@pytest.mark.parametrize(
    "nick", ["", "a b", "#a", "1a", "-a", "a!b", "a@b", "a,b", ":a", "a\r\nQUIT", "a\0", "é" * 101]
)
def test_a_nick_may_not_be(nick: str) -> None:
    with pytest.raises(IrcSettingsError):
        IrcUser(nick)


@pytest.mark.parametrize("channel", ["#a", "&local", "+x", "!12345abc", "#a key", "#größe", "##"])
def test_a_channel_may_be(channel: str) -> None:
    assert IrcUser("alpha", [channel]).channels == [channel]


@pytest.mark.parametrize(
    "channel", ["", "a", "#a,#b", "#a k,l", "#a :k", "#a b c", "#a\r\nQUIT", " #a", "#" + "a" * 200]
)
def test_a_channel_may_not_be(channel: str) -> None:
    with pytest.raises(IrcSettingsError):
        IrcUser("alpha", [channel])


def test_each_setting_sent_at_registration_is_one_line() -> None:
    with pytest.raises(IrcSettingsError, match="a password must not have control characters"):
        IrcServer("irc.example.net", 6667, password="a\r\nOPER")
    with pytest.raises(IrcSettingsError, match="a user name must be one word"):
        IrcUser("alpha", username="a b")
    with pytest.raises(IrcSettingsError, match="a real name must not have control characters"):
        IrcUser("alpha", realname="a\nb")


def test_a_server_is_written_as_people_write_it() -> None:
    assert str(IrcServer("irc.example.net", 6667)) == "irc.example.net:6667"
    assert str(IrcServer("::1", 6667)) == "[::1]:6667"
