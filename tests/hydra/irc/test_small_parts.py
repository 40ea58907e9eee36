"""The pace of lines, nicks that are tried, and channels, each by itself."""

from __future__ import annotations

from random import Random

import pytest

from hydra.irc.casemapping import fold
from hydra.irc.channels import Channels, ChannelState
from hydra.irc.nicks import drawn_nick, other_nicks
from hydra.irc.pace import Pace


def test_after_a_burst_lines_go_one_by_one() -> None:
    pace = Pace(3, 2.0)
    for _ in range(3):
        assert pace.wait(100.0) == 0
        pace.spend(100.0)
    assert pace.wait(100.0) == 2.0
    assert pace.wait(101.5) == 0.5
    assert pace.wait(102.0) == 0
    pace.spend(102.0)
    assert pace.wait(102.0) == 2.0


def test_a_pause_allows_a_burst_again_but_no_greater_one() -> None:
    pace = Pace(2, 1.0)
    pace.spend(0.0)
    pace.spend(0.0)
    for _ in range(2):
        assert pace.wait(1000.0) == 0
        pace.spend(1000.0)
    assert pace.wait(1000.0) == 1.0


def test_a_line_out_of_turn_is_paid_for_later() -> None:
    pace = Pace(1, 1.0)
    for _ in range(3):
        pace.spend(10.0)
    assert pace.wait(10.0) == 3.0


def test_without_an_interval_there_is_no_wait() -> None:
    pace = Pace(1, 0)
    for _ in range(100):
        pace.spend(5.0)
    assert pace.wait(5.0) == 0


def test_nicks_are_tried_from_the_nearest_to_short_ones_that_are_drawn() -> None:
    nicks = list(other_nicks("fivewire-node", Random(1)))
    assert nicks[:3] == ["fivewire-node_", "fivewire-node2", "fivewire-node3"]
    assert nicks[8] == "fivewire-node9"
    assert len(set(nicks[9:])) == 5
    assert all(nick.startswith("five") and len(nick) == 9 for nick in nicks[9:])


def test_a_short_nick_is_drawn_whole() -> None:
    assert drawn_nick("ab", Random(3)).startswith("ab")
    assert len(drawn_nick("ab", Random(3))) == 7


@pytest.mark.parametrize(("one", "other"), [("#Chan", "#chAN"), ("a[]\\^", "A{}|~")])
def test_names_are_compared_as_irc_does(one: str, other: str) -> None:
    assert fold(one) == fold(other)


def test_channels_are_settled_when_each_has_its_answer() -> None:
    channels = Channels(["#One", "#two key"])
    assert channels.ask() == ["JOIN #One", "JOIN #two key"]
    assert not channels.settled()
    channels.change("#one", ChannelState.JOINED)
    assert channels.refused(["alpha", "#elsewhere", "#TWO"]) == "#TWO"
    assert channels.settled()
    assert channels.ask() == ["JOIN #two key"]


def test_an_error_about_a_channel_that_is_joined_is_no_refusal() -> None:
    channels = Channels(["#one"])
    channels.ask()
    channels.change("#one", ChannelState.JOINED)
    assert channels.refused(["#one"]) is None
    assert channels.ask() == []


def test_a_request_without_an_answer_counts_as_refused() -> None:
    channels = Channels(["#one", "#two"])
    channels.ask()
    channels.change("#two", ChannelState.JOINED)
    assert channels.give_up() == ["#one"]
    assert channels.settled()
    assert channels.ask() == ["JOIN #one"]


def test_a_channel_is_joined_again_unless_it_was_left_on_purpose() -> None:
    channels = Channels(["#one", "#two"])
    channels.ask()
    channels.change("#one", ChannelState.JOINED)
    channels.change("#two", ChannelState.JOINED)
    channels.change("#one", ChannelState.LEFT)
    channels.change("#two", ChannelState.REFUSED)
    channels.change("#unknown", ChannelState.REFUSED)
    assert channels.ask() == ["JOIN #two"]
