"""Byte for byte, what the only other implementation says and hears."""

import json
from pathlib import Path

import pytest

from hydra.protocol.roles import Role
from tests.hydra.protocol.driver import Driven

EXCHANGE = json.loads((Path(__file__).parents[2] / "vectors.json").read_text())["hydra"]
PEER = 777


def acceptor(id: int = 1804289383) -> Driven:
    """A node that has founded its network, with this id."""
    driven = Driven(founder=True)
    driven.node.core.id = driven.node.core.members.own_id = driven.node.core.leader = id
    driven.connect(1)
    return driven


def inducted(driven: Driven, id: int = PEER) -> Driven:
    driven.hear(1, f"KNOCK {id} probe")
    driven.clear()
    return driven


def test_a_server_knocks_and_is_inducted() -> None:
    lines = EXCHANGE["induction, acceptor 1804289383"]
    driven = acceptor()
    assert driven.hear(1, lines[0].removeprefix("-> ")) == [line.removeprefix("<- ") for line in lines[1:]]
    assert driven.node.members.get(12345) is not None


def test_lines_may_end_with_a_line_feed_alone_and_come_in_pieces() -> None:
    driven = acceptor()
    assert driven.hear_bytes(1, b"KNOCK 12") == []
    assert driven.hear_bytes(1, b"345 probe\n")[0] == "MEET 12345 1804289383"


def test_an_election_of_two_that_the_other_side_wins() -> None:
    driven = inducted(acceptor(1045618677))
    assert driven.hear(1, "NOMINATE 2 777") == ["PLEDGE 2 777 1045618677"]
    assert driven.hear(1, "PLEDGE 2 777 777") == ["PLEDGE 2 777 777", "CALL 2", "ELECT 2 777 1045618677"]
    assert driven.hear(1, "CALL 2") == ["ELECT 2 777 1045618677"]
    assert driven.hear(1, "ELECT 2 777 777") == ["ELECT 2 777 777"]
    assert driven.hear(1, "PING 2 x 777") == ["PONG x 1045618677 0 alpha"]
    assert (driven.node.role, driven.node.leader) == (Role.FOLLOWING, 777)


@pytest.mark.parametrize(
    "answer", ["PONG {val} {peer} 0 probe", "PONG {val} {leader} 1"], ids=["own id", "leader's id"]
)
def test_a_peer_that_answers_is_kept_whichever_id_it_answers_with(answer: str) -> None:
    driven = inducted(acceptor())
    for _ in range(8):
        driven.clear()
        driven.wait(2.5)
        (ping,) = driven.sent[1]
        _, term, val, leader = ping.split(" ")
        assert (term, leader) == ("1", str(driven.id))
        driven.hear(1, answer.format(val=val, peer=PEER, leader=leader))
    member = driven.node.members.get(PEER)
    assert member is not None
    assert (member.link, member.hops) == (1, 1)
    assert member.heard == driven.now


def test_a_peer_that_does_not_answer_is_dropped() -> None:
    driven = inducted(acceptor())
    driven.wait(13)
    drop = driven.sent[1][-1]
    assert drop.startswith("DROP 777 no PONG for ")
    assert driven.closed[1] == "node 777 was dropped"
    assert driven.node.role is Role.LEADING


def test_a_member_that_left_may_return_with_the_same_id() -> None:
    driven = inducted(acceptor())
    driven.lose(1)
    for link, seconds in ((2, 1), (3, 20)):
        driven.wait(seconds)
        driven.connect(link)
        assert driven.hear(link, "KNOCK 777 probe") == [
            f"MEET 777 {driven.id}",
            "WELCOME 777",
            f"HELLO 777 {driven.id}",
        ]
        driven.lose(link)


def dialler() -> Driven:
    driven = Driven(targets=["there:6174"])
    assert driven.dialled == ["there:6174"]
    driven.connect(1, target="there:6174")
    assert driven.sent[1] == [f"KNOCK {driven.id} alpha@00000000000000aa"]
    return driven


def welcomed() -> Driven:
    driven = dialler()
    answer = [f"MEET {driven.id} 777", f"WELCOME {driven.id}", f"HELLO {driven.id} 777"]
    assert driven.hear(1, *answer) == []
    return driven


def test_a_node_that_dials_is_inducted_and_follows() -> None:
    driven = welcomed()
    assert driven.node.role is Role.WAITING
    assert driven.hear(1, "PING 4 abc 777") == [f"PONG abc {driven.id} 0 alpha"]
    assert (driven.node.role, driven.node.term, driven.node.leader) == (Role.FOLLOWING, 4, 777)
    assert driven.hear(1, "PING 4 abc 777") == []


def test_a_node_that_dials_takes_over_when_the_other_is_silent_and_pledges() -> None:
    driven = welcomed()
    driven.hear(1, "PING 1 abc 777")
    driven.clear()
    driven.wait(15.1)
    own = driven.id
    assert driven.sent[1][:2] == [f"NOMINATE 2 {own}", f"PLEDGE 2 {own} {own}"]
    driven.clear()
    assert driven.hear(1, f"PLEDGE 2 {own} 777") == [f"PLEDGE 2 {own} 777", "CALL 2", f"ELECT 2 {own} {own}"]
    driven.hear(1, f"ELECT 2 {own} 777")
    assert driven.node.role is Role.LEADING
    assert driven.sent[1] == [f"ELECT 2 {own} 777", f"PING 2 2.1.00000000000000aa {own}"]
    assert not driven.on_irc
    driven.hear(1, f"PONG 2.1.00000000000000aa {own} 1")
    assert driven.on_irc


def test_lines_from_irc_go_out_unaltered_and_only_known_ones_go_in() -> None:
    driven = inducted(acceptor())
    driven.call("irc_line", ":x!y@z PRIVMSG #c :two  spaces ")
    driven.call("irc_line", ":x!y@z KICK #c w")
    driven.call("irc_line", ":server 001 alpha :Welcome")
    assert driven.sent[1] == ["RECV 0 :x!y@z PRIVMSG #c :two  spaces ", "RECV 1 :x!y@z KICK #c w"]
    driven.hear(1, "SEND 777 PRIVMSG #c :hello  there", "SEND 777 QUIT :bye", "SEND 778 PRIVMSG #c :who?")
    assert driven.said == ["PRIVMSG #c :hello  there"]


def test_lines_of_a_leader_without_attributes_are_delivered_under_its_term() -> None:
    driven = welcomed()
    driven.hear(1, "PING 4 abc 777", "RECV 7 :x JOIN #c", "RECV 8 :x PART #c", "PING 5 def 777", "RECV 0 :x JOIN #c")
    assert driven.delivered == [(4, 7, ":x JOIN #c"), (4, 8, ":x PART #c"), (5, 0, ":x JOIN #c")]
    driven.call("submit", "m1", "PRIVMSG #c :hi")
    assert driven.sent[1][-1] == f"SEND {driven.id} PRIVMSG #c :hi"
