"""Hydra's tables: what they refuse, and who runs."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction

from hydra.models import IrcState, Link, Member, Node, NodeRole, RecordedLine, SentLine, Vote
from hydra.operations import NodeRunning, forget_node
from hydra.protocol.irclease import State as IrcLeaseState
from hydra.protocol.links import State as LinkState
from hydra.protocol.roles import Role
from tests.hydra.rows import running

pytestmark = pytest.mark.django_db

KEY = "00000000000000aa"


def test_the_tables_know_every_role_and_state() -> None:
    assert NodeRole.values == [role.name.lower() for role in Role]
    assert IrcState.values == [state.name.lower() for state in IrcLeaseState]
    longest = Link._meta.get_field("state").max_length
    assert longest == max(len(state.name) for state in LinkState)


@pytest.mark.parametrize(
    ("fields", "constraint"),
    [
        ({"name": ""}, "name_not_empty"),
        ({"voter": "AA00000000000000"}, "hydra_node_voter"),
        ({"voter": "00aa"}, "hydra_node_voter"),
        ({"term": -1}, "hydra_node_term"),
        ({"role": "king"}, "hydra_node_role"),
        ({"irc": "maybe"}, "hydra_node_irc"),
        ({"position_term": 1}, "hydra_node_position"),
        ({"position_idx": 1}, "hydra_node_position"),
    ],
)
def test_a_row_that_makes_no_sense_is_refused(fields: dict[str, Any], constraint: str) -> None:
    with pytest.raises(IntegrityError, match=constraint), transaction.atomic():
        Node.objects.create(**{"name": "alpha", "voter": KEY, **fields})


@pytest.mark.parametrize("other", [{"name": "alpha", "voter": KEY[::-1]}, {"name": "beta", "voter": KEY}])
def test_names_and_keys_are_one_nodes_only(other: dict[str, str]) -> None:
    Node.objects.create(name="alpha", voter=KEY)
    with pytest.raises(IntegrityError), transaction.atomic():
        Node.objects.create(**other)


def test_a_key_votes_once_in_a_term() -> None:
    Vote.objects.create(voter=KEY, term=4, pledge=11, name="alpha")
    Vote.objects.create(voter=KEY, term=5, pledge=12, name="alpha")
    with pytest.raises(IntegrityError, match="hydra_vote_once"), transaction.atomic():
        Vote.objects.create(voter=KEY, term=4, pledge=12, name="alpha")


@pytest.mark.parametrize("change", [{"pledge": 12}, {"term": 3}, {"voter": KEY[::-1]}])
def test_the_orm_takes_no_promise_back_either(change: dict[str, Any]) -> None:
    node = Node.objects.create(name="alpha", voter=KEY, term=4, pledge=11)
    with pytest.raises(IntegrityError), transaction.atomic():
        Node.objects.filter(pk=node.pk).update(**change)
    Node.objects.filter(pk=node.pk).update(term=5, pledge=None)
    Node.objects.filter(pk=node.pk).update(pledge=12)


def test_a_line_is_recorded_once_for_each_queue() -> None:
    for queue, term, idx in (("a", 1, 0), ("a", 1, 1), ("a", 2, 0), ("b", 1, 0)):
        RecordedLine.objects.create(queue=queue, term=term, idx=idx)
    with pytest.raises(IntegrityError), transaction.atomic():
        RecordedLine.objects.create(queue="a", term=1, idx=0)
    assert RecordedLine.objects.count() == 4


def test_a_message_is_sent_once() -> None:
    SentLine.objects.create(message=7)
    with pytest.raises(IntegrityError), transaction.atomic():
        SentLine.objects.create(message=7)


def test_rows_say_in_words_what_they_are() -> None:
    node = Node(name="alpha", voter=KEY)
    rows = (
        node, Link(node=node, number=3), Member(node=node, member=11, tag="beta"), Member(node=node, member=12),
        Vote(voter=KEY, term=4, pledge=11), RecordedLine(queue="irc", term=4, idx=7), SentLine(message=9),
    )  # fmt: skip
    assert [*map(str, rows)] == [
        "alpha", "link 3", "beta (11)", "node (12)", f"{KEY} pledged to 11 in term 4", "irc: 4.7", "message 9",
    ]  # fmt: skip


@pytest.mark.django_db(transaction=True)
def test_a_node_runs_as_long_as_its_lock_is_held() -> None:
    Node.objects.create(name="beta", voter=KEY)
    with running("alpha"):
        assert {node.name: node.running for node in Node.objects.with_running()} == {"alpha": True, "beta": False}
        with pytest.raises(NodeRunning, match="'alpha' runs"):
            forget_node(Node.objects.get(name="alpha"))
    assert not Node.objects.with_running().get(name="alpha").running
    forget_node(Node.objects.get(name="alpha"))
    assert Node.objects.get().name == "beta"


@pytest.mark.django_db(transaction=True)
def test_a_lock_of_the_same_number_that_is_not_hydras_is_no_running_node() -> None:
    node = Node.objects.create(name="alpha", voter=KEY)
    with connection.cursor() as cursor:
        cursor.execute("select pg_advisory_lock(1, %s), pg_advisory_lock(%s)", [node.pk, node.pk])
        assert not Node.objects.with_running().get().running
        cursor.execute("select pg_advisory_unlock_all()")
