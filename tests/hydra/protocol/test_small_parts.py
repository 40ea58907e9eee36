"""Lines of IRC, times, memory of messages, who may connect."""

import dataclasses
from ipaddress import ip_network
from typing import Any

import pytest

from hydra.protocol.admission import Admission, AdmissionRules
from hydra.protocol.lines import E_RECV, E_SEND, command, passes
from hydra.protocol.seen import Seen
from hydra.protocol.times import Times


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("PRIVMSG #c :x", "PRIVMSG"), ("privmsg #c :x", "PRIVMSG"), (":a!b@c JOIN #c", "JOIN"),
        ("@time=1;x :a!b@c  KICK #c d", "KICK"), ("@a=b TOPIC #c", "TOPIC"), ("", ""), (":only", ""), ("@only", ""),
    ],
)  # fmt: skip
def test_the_command_of_a_line_is_found(line: str, found: str) -> None:
    assert command(line) == found


def test_quit_comes_from_irc_and_does_not_go_there() -> None:
    assert {"JOIN", "PART", "PRIVMSG", "NOTICE", "MODE", "TOPIC", "KICK"} == E_SEND
    assert passes(":a!b@c QUIT :bye", E_RECV)
    assert not passes("QUIT :bye", E_SEND)


@pytest.mark.parametrize(
    "line", ["PRIVMSG #c :a\r\nQUIT", "PRIVMSG #c :a\nb", "PRIVMSG #c :\0", "PRIVMSG " + "é" * 1000]
)
def test_text_of_more_than_one_line_is_refused(line: str) -> None:
    assert passes("PRIVMSG #c :a", E_SEND)
    assert not passes(line, E_SEND)


@pytest.mark.parametrize(
    "wrong",
    [{"max_ping": 0}, {"max_meet": 0}, {"max_vote_min": 0}, {"max_vote_min": 16}, {"max_vote_max": 4}],
)
def test_times_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="MAX_"):
        Times(**wrong)


def test_the_lease_ends_before_the_promise_though_clocks_differ_by_a_tenth() -> None:
    times = dataclasses.replace(Times(), max_ping=7.0)
    assert times.lease / 0.9 < times.max_ping / 1.1


def test_a_message_is_new_once() -> None:
    seen = Seen()
    assert seen.add("a")
    assert not seen.add("a")
    assert "a" in seen


def test_a_message_that_recurs_is_new_again_after_its_time() -> None:
    seen = Seen()
    assert seen.add("a", now=1.0, lifetime=10.0)
    assert not seen.add("a", now=10.9, lifetime=10.0)
    assert seen.add("a", now=11.0, lifetime=10.0)


def test_only_so_many_messages_are_remembered_the_oldest_is_forgotten() -> None:
    seen = Seen(2)
    assert [seen.add(key) for key in "abc"] == [True, True, True]
    assert len(seen) == 2
    assert seen.add("a")
    assert not seen.add("c")


def test_only_allowed_networks_may_connect() -> None:
    keeper = Admission(AdmissionRules(allow=[ip_network("10.0.0.0/8"), ip_network("::1/128")]))
    assert keeper.refusal("10.1.2.3", 0, 0.0) is None
    assert keeper.refusal("::1", 0, 0.0) is None
    assert keeper.refusal("11.1.2.3", 0, 0.0) == "11.1.2.3 is not in an allowed network"
    assert keeper.refusal("host.example", 0, 0.0) == "host.example is not in an allowed network"
    assert keeper.refusal("fifo:///run/hydra/a", 0, 0.0) is None
    assert Admission(AdmissionRules()).refusal("host.example", 0, 0.0) is None


def test_an_origin_that_disconnects_too_often_is_refused_for_a_while() -> None:
    keeper = Admission(AdmissionRules(disconnects=3, window=60.0))
    for at in (0.0, 10.0, 20.0):
        assert keeper.refusal("10.0.0.1", 0, at) is None
        keeper.ended("10.0.0.1", at)
    assert keeper.refusal("10.0.0.1", 0, 21.0) == "10.0.0.1 has disconnected 3 times in 60 s"
    assert keeper.refusal("10.0.0.2", 0, 21.0) is None
    assert keeper.refusal("10.0.0.1", 0, 60.0) is None


def test_no_more_links_than_allowed() -> None:
    assert Admission(AdmissionRules(links=2)).refusal("x", 2, 0.0) == "2 links are open already"
