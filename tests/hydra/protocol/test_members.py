"""The record of all other nodes."""

from hydra.protocol.members import MAX_DROPPED, MAX_MEMBERS, Members

A, B = "00000000000000aa", "00000000000000bb"


def members() -> Members:
    return Members(own_id=1, own_voter=A, memory=300.0)


def test_a_registered_node_is_found_by_id_and_by_voter() -> None:
    record = members()
    member = record.register(7, B, 5.0)
    assert member is not None
    assert (record.get(7), record.of_voter(B), member.heard) == (member, member, 5.0)
    assert record.get(8) is None
    assert record.get(None) is None


def test_a_dropped_id_stays_out_for_a_while_but_may_be_inducted_anew() -> None:
    record = members()
    record.register(7, B, 0.0)
    record.drop(7, 10.0)
    assert 7 not in record
    assert record.register(7, B, 309.0) is None
    assert record.register(7, B, 310.0) is not None
    record.drop(7, 320.0)
    assert record.welcome(7, None, 321.0) is not None


def test_a_voter_that_comes_with_another_id_has_left_the_one_it_had() -> None:
    record = members()
    record.register(7, B, 0.0)
    record.register(8, B, 1.0)
    assert 7 not in record
    assert record.is_dropped(7, 1.0)
    assert [member.id for member in record] == [8]


def test_an_id_belongs_to_one_voter() -> None:
    record = members()
    record.register(7, B, 0.0)
    assert record.register(7, "00000000000000cc", 1.0) is None
    assert [member.voter for member in record] == [B]


def test_no_member_can_be_this_node_itself() -> None:
    record = members()
    assert record.register(1, B, 0.0) is None
    assert record.register(7, A, 0.0) is None
    assert len(record) == 0


def test_votes_of_a_node_without_a_lasting_key_count_under_its_id() -> None:
    record = members()
    member = record.register(7, None, 0.0)
    assert member is not None
    assert member.identity == "#7"
    assert record.plain.voters == {A, "#7"}


def test_a_dropped_member_keeps_its_vote_unless_a_leader_removes_it() -> None:
    record = members()
    record.register(7, None, 0.0)
    record.register(8, None, 0.0)
    record.drop(7, 1.0)
    assert record.plain.quorum == 2
    record.drop(8, 1.0, shrink=True)
    assert record.plain.voters == {A, "#7"}


def test_the_closest_neighbour_is_the_one_with_the_fewest_hops() -> None:
    record = members()
    member = record.register(7, B, 0.0)
    assert member is not None
    for link, hops, fresh, expected in (
        (1, 3, True, (1, 3)),
        (2, 1, False, (2, 1)),
        (3, 2, False, (2, 1)),
        (3, 2, True, (3, 2)),
    ):
        member.route(link, hops, fresh=fresh)
        assert (member.link, member.hops) == expected
    record.forget_link(3)
    assert member.link is None


def test_memory_is_bounded() -> None:
    record = members()
    for id in range(2, 2 * MAX_DROPPED):
        record.register(id, None, 0.0)
        assert len(record) <= MAX_MEMBERS
    for id in range(2, 3 * MAX_DROPPED):
        record.drop(id, 0.0)
    assert len(record) == 0
    assert sum(record.is_dropped(id, 0.0) for id in range(3 * MAX_DROPPED)) == MAX_DROPPED


def test_a_node_that_takes_another_id_forgets_the_others_but_not_its_former_id() -> None:
    record = members()
    record.register(7, B, 0.0)
    record.restart(2, 1.0)
    assert len(record) == 0
    assert record.register(1, None, 2.0) is None
    assert record.register(7, B, 2.0) is not None
