"""Unknown and lying nodes: the network keeps its leader, and its memory stays bounded."""

from random import Random

import pytest

from hydra.protocol.admission import AdmissionRules
from hydra.protocol.roles import Role
from tests.hydra.protocol.driver import OTHERS, VOTER, Driven, answer, leader_of_three

B, C, D, _ = OTHERS


def size(driven: Driven) -> int:
    """The number of entries in a node's memory."""
    node = driven.node
    return (
        len(node.members) + len(node.core.seen) + len(node.induction.knocks) + len(node.induction.waiting)
        + len(node.core.links) + len(node.election.tally.pledges)
    )  # fmt: skip


def unmoved(driven: Driven) -> bool:
    return (driven.node.role, driven.node.term, driven.on_irc, len(driven.node.members)) == (Role.LEADING, 4, True, 2)


def test_a_flood_of_garbage_before_the_handshake_closes_the_link_and_nothing_else() -> None:
    rng = Random(1)
    driven = leader_of_three()
    before = size(driven)
    driven.connect(3)
    for _ in range(1000):
        driven.hear_bytes(3, rng.randbytes(rng.randrange(300)).replace(b"KNOCK", b""))
    assert driven.closed[3]
    driven.connect(4)
    driven.hear_bytes(4, b"GET / HTTP/1.1\r\n" * 101)
    assert driven.closed[4] == "its first line is no message of Hydra's: 'GET / HTTP/1.1'"
    driven.connect(5)
    driven.hear_bytes(5, b"KNOCK 77 probe\r\n" + b"NOTHING that is known\r\n" * 101)
    assert driven.closed[5] == "more than 100 meaningless lines"
    assert unmoved(driven)
    assert size(driven) == before + 1, "the knock that was relayed"


@pytest.mark.parametrize(
    ("data", "reason"),
    [(b"x" * 2049, "a line has more than 2048 bytes"), (b"KNOCK 1 \xff\n", "a line is not UTF-8")],
)
def test_an_invalid_line_closes_the_link_with_its_reason(data: bytes, reason: str) -> None:
    driven = leader_of_three()
    driven.connect(3)
    driven.hear_bytes(3, data)
    assert driven.closed[3]
    driven.hear_bytes(1, data)
    assert driven.closed[1] == reason


def test_a_line_without_end_takes_no_memory() -> None:
    driven = leader_of_three()
    driven.connect(3)
    for _ in range(10_000):
        driven.hear_bytes(3, b"x" * 1000)
    assert driven.closed[3].startswith("its first line is no message of Hydra's: 'xxx")
    for _ in range(3):
        driven.hear_bytes(1, b"x" * 1000)
    assert driven.closed[1] == "a line has more than 2048 bytes"


@pytest.mark.parametrize(
    "data",
    [
        b"POST / HTTP/1.1\r\nHost: 127.0.0.1:6174\r\n\r\nKNOCK 99 page\r\nDROP 11 gone\r\n",
        b"KNOCK / HTTP/1.1\r\n\r\nKNOCK 99 page\r\n",
        b"POST /a-path-that-does-not-end",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\r\n\r\nPOST / HTTP/1.1\r\n",
        b"CHALLENGE 00\r\nKNOCK 99 page\r\n",
        b"KNOCK99",
        b"\x00",
    ],
    ids=["POST", "a method of its own", "half a request", "TLS", "empty lines first", "a secret", "no field", "NUL"],
)
def test_a_web_page_cannot_drive_a_node_with_one_request(data: bytes) -> None:
    driven = leader_of_three()
    driven.connect(3)
    assert driven.hear_bytes(3, data) == []
    assert driven.closed[3].startswith("its first line is no message of Hydra's: ")
    assert driven.sent[1] == driven.sent[2] == []
    assert unmoved(driven)


@pytest.mark.parametrize("size", [1, 3, 7])
def test_a_first_line_that_comes_in_pieces_is_waited_for(size: int) -> None:
    driven = leader_of_three()
    driven.connect(3)
    line = b"@unknown=1 KNOCK 13 probe\r\n"
    for start in range(0, len(line), size):
        driven.hear_bytes(3, line[start : start + size])
    assert 3 not in driven.closed
    assert driven.node.induction.mediation is not None


def test_ten_thousand_forged_knocks_over_as_many_links() -> None:
    driven = leader_of_three(admission=AdmissionRules(disconnects=50))
    driven.sent.clear()
    for number in range(10_000):
        driven.connect(100 + number, origin="10.9.9.9")
        driven.hear(100 + number, f"KNOCK {1_000_000 + number} forged")
        driven.lose(100 + number)
    assert unmoved(driven)
    assert len(driven.sent[1]) <= 100
    assert driven.closed[100 + 9999] == "10.9.9.9 has disconnected 50 times in 60 s"


def test_ten_thousand_forged_knocks_through_a_node() -> None:
    driven = leader_of_three()
    before = size(driven)
    driven.clear()
    for number in range(10_000):
        driven.hear(1, f"KNOCK {1_000_000 + number} forged")
    assert unmoved(driven)
    assert size(driven) <= before + 3 * 64
    assert len(driven.sent[2]) <= 3 * 64
    driven.wait(2.5)
    answer(driven)
    assert driven.node.role is Role.LEADING


def test_a_peer_that_replays_old_terms_moves_no_node_and_is_not_relayed() -> None:
    driven = leader_of_three()
    driven.clear()
    for number in range(200):
        for line in (
            f"@voter={B};next=0 PING 3 3.{number} 11", f"@voter={B} NOMINATE 2 11",
            f"@voter={B} PLEDGE 3 {driven.id} 11",
            "CALL 3", f"@voter={B} ELECT 1 11 11", f"@term=2 RECV {number} JOIN #c",
        ):  # fmt: skip
            assert driven.hear(1, line) == []
    assert driven.sent[2] == []
    assert unmoved(driven)


def test_votes_for_thousands_of_nominees_take_no_memory() -> None:
    driven = leader_of_three()
    for number in range(20_000):
        driven.hear(1, f"@voter={B} PLEDGE 4 {number + 1} 11")
    assert len(driven.node.election.tally.pledges) <= 1024
    assert len(driven.node.core.seen) <= 8192
    assert unmoved(driven)


def test_answers_of_thousands_of_invented_nodes_take_no_memory() -> None:
    driven = leader_of_three()
    for number in range(3000):
        driven.hear(1, f"@voter={number:016x} PONG 4.1 {number + 1000} 1 ghost")
    assert len(driven.node.members) <= 1024
    assert driven.node.role is Role.LEADING


def test_lines_of_far_terms_do_not_push_out_this_ones() -> None:
    driven = leader_of_three()
    driven.call("irc_line", "JOIN #c")
    for term in range(5, 100):
        driven.hear(1, f"@term={term} RECV 0 JOIN #c")
    assert driven.hear(1, "ASK 4 0") == ["@term=4 RECV 0 JOIN #c"]


def test_a_disk_that_never_answers_costs_the_links_not_the_memory() -> None:
    driven = leader_of_three()
    driven.disk = False
    driven.hear(1, f"@voter={B};next=0 PING 6 6.0 11")
    for number in range(1, 12_000):
        driven.hear(1, f"@voter={B};next=0 PING 6 6.{number} 11")
    assert driven.closed[1] == "the disk does not answer"
    assert not driven.on_irc


def test_a_stranger_over_a_joined_link_cannot_pass_for_a_voter() -> None:
    driven = leader_of_three()
    driven.connect(3)
    driven.hear(3, f"KNOCK 99 liar@{VOTER}")
    assert driven.closed[3] == "99 is this node"
    driven.connect(4)
    driven.hear(4, f"KNOCK 11 liar@{D}")
    assert driven.closed[4] == "11 is another node's id"
