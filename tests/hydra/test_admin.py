"""Hydra's nodes in the operators' pages."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.contrib.contenttypes.models import ContentType
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django.fixtures import DjangoAssertNumQueries

from hydra.models import Event, Link, Member, Node, Tenure, Vote
from hydra.notifications import CommandAction
from queues.models import AuditJournalEntry
from queues.operations import connections
from queues.operations.connections import ConnectionGone
from tests.hydra.protocol.driver import OTHERS, Driven, leader_of_three, voter_of_three
from tests.hydra.rows import rows, running
from tests.queues.admin.test_admin import LOGIN
from tests.queues.admin.test_admin import unprivileged as unprivileged  # a fixture
from tests.queues.admin.test_worker import text_of
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

LIST = "admin:hydra_node_changelist"


def page(node: Node) -> str:
    return reverse("admin:hydra_node_change", args=[node.pk])


def action(name: str, *args: Any) -> str:
    return reverse(f"admin:hydra_node_{name}", args=args)


def the_node(name: str = "alpha") -> Node:
    return Node.objects.get(name=name)


def stopped(name: str = "alpha", driven: Driven | None = None, pledge: int | None = None) -> Node:
    """A node that has shown something, and has ended."""
    with running(name, driven or leader_of_three(), pledge):
        pass
    return the_node(name)


# Looking.


def test_the_list_shows_running_leading_and_voting_nodes(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hydra.storage.status_writer.SIGN_OF_LIFE", 3600.0)  # else the node may show newer values
    stopped("beta", voter_of_three())
    with running("alpha", leader_of_three()) as alpha:
        rows("update hydra_node set lease_until = now() + interval '90 min', seen_at = now() - interval '200 s'")
        shown = text_of(admin_client.get(reverse(LIST)))
        id = the_node().current_id
    assert f"alpha leading 4 alpha {id} no, 3 have one 2 on ends in 1 hour, unless renewed 3 minutes ago" in shown
    assert f"beta not running 3 - {the_node('beta').current_id} no, 3 have one - off - 3 minutes ago" in shown
    assert alpha.failed == []


def test_a_node_that_votes_is_shown_as_one_of_the_voters(admin_client: Client) -> None:
    node = stopped()
    rows("update hydra_node set electorate = '1.2:' || voter || %s", f",{OTHERS[0]}")
    assert "yes, 2 have one" in text_of(admin_client.get(reverse(LIST)))
    assert "2 voters, 2 are a majority: version 2 of term 1" in text_of(admin_client.get(page(node)))


@pytest.mark.parametrize("count", [1, 4])
def test_the_list_takes_as_many_queries_for_many_nodes_as_for_one(
    admin_client: Client, django_assert_num_queries: DjangoAssertNumQueries, count: int
) -> None:
    for n in range(count):
        stopped(f"node {n}")
    with django_assert_num_queries(LOGIN + 3):  # the timeline, how many there are, the page
        response = admin_client.get(reverse(LIST))
    assert len(response.context["cl"].result_list) == count


@pytest.mark.parametrize("count", [1, 40])
def test_a_page_takes_as_many_queries_for_many_members_as_for_one(
    admin_client: Client, django_assert_num_queries: DjangoAssertNumQueries, count: int
) -> None:
    node = stopped()
    for n in range(count):
        Member.objects.create(node=node, member=100 + n, voter=f"{n:016x}", tag="", hops=2, via=1, voting=True)
        Event.objects.create(node=node, at=timezone.now(), kind="test", term=1, text=str(n))
    ContentType.objects.get_for_model(Node)  # else the first page of a process asks for it
    # The node twice; its links, members, votes and events; who else has a row here.
    with django_assert_num_queries(LOGIN + 7):
        admin_client.get(page(node))


def test_the_page_of_a_leader_shows_its_network(admin_client: Client) -> None:
    with running("alpha", leader_of_three(), pledge=12):
        response = admin_client.get(page(the_node()))
    shown, source = text_of(response), response.content.decode()
    for part in (
        "1 from 10.0.0.1 n1 11 joined yes", "2 from 10.0.0.2 n2 12 joined yes",
        "n1 11 1 link away 1 yes", "n2 12 1 link away 2 yes", "4 12 n2", "to 12 in term 4", "127.0.0.1:6174",
        "role 4 leads term 4", "joined 4 n1 (11) is a node of the network",
    ):  # fmt: skip
        assert part in shown
    assert 'aria-label="The network: 3 nodes, 2 lines"' in source
    assert source.count("<circle") == 4  # the leader's has a ring
    assert "data-every" in source


def test_voters_that_are_away_are_shown(admin_client: Client) -> None:
    node = stopped("alpha", voter_of_three())
    gone = stopped("gamma")
    rows("update hydra_node set electorate = '3.5:' || %s || ',' || %s where name = 'alpha'", gone.voter, OTHERS[1])
    source = admin_client.get(page(node)).content.decode()
    shown = text_of(admin_client.get(page(node)))
    assert f"gamma - away - yes - {gone.voter}" in shown
    assert f"unknown - away - yes - {OTHERS[1]}" in shown
    assert f'href="{page(gone)}"' in source


def test_links_between_other_nodes_of_this_database_are_drawn_too(admin_client: Client) -> None:
    with running("alpha", leader_of_three()), running("beta", voter_of_three()) as beta:
        rows("update hydra_node set current_id = 11 where name = 'beta'")
        other = Link(number=1, origin="10.0.0.2", peer=12, state="joined", extended=True, opened_at="2026-01-01T00:00Z")
        other.node_id = beta.store.lease.id
        other.save()
        source = admin_client.get(page(the_node())).content.decode()
    assert 'aria-label="The network: 3 nodes, 3 lines"' in source


def test_a_node_that_is_reached_by_way_of_others_has_a_broken_line(admin_client: Client) -> None:
    node = stopped()
    Member.objects.create(node=node, member=13, tag="far", hops=2, via=1, voting=False)
    source = admin_client.get(page(node)).content.decode()
    assert source.count("stroke-dasharray") == 1
    assert "2 links away" in source


def test_names_are_shown_as_text(admin_client: Client) -> None:
    node = stopped("<b>alpha</b>")
    Member.objects.create(node=node, member=13, tag="<script>", hops=1, via=1, voting=False)
    Event.objects.create(node=node, at=timezone.now(), kind="test", term=1, text="<i>{x}</i>")
    source = admin_client.get(page(node)).content.decode()
    assert source.count("&lt;script&gt;") >= 2
    assert "&lt;i&gt;{x}&lt;/i&gt;" in source
    assert not [raw for raw in ("<b>alpha", "<script>, id", "<i>{x}") if raw in source]


def test_a_node_that_has_never_run_is_shown(admin_client: Client) -> None:
    node = Node.objects.create(name="alpha", voter=OTHERS[0])
    shown = text_of(admin_client.get(page(node)))
    assert "nothing is known yet" in shown
    assert "alpha not running 0 - - - - off - never" in text_of(admin_client.get(reverse(LIST)))


def test_events_are_listed_by_node_and_kind(
    admin_client: Client, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    alpha, beta = stopped("alpha"), stopped("beta")
    Event.objects.create(node=beta, at=timezone.now(), kind="link closed", term=7, text="the other side went away")
    with django_assert_num_queries(LOGIN + 4):  # how many there are, the page, the nodes and the kinds to choose from
        shown = text_of(admin_client.get(reverse("admin:hydra_event_changelist"), {"kind": "link closed"}))
    assert "beta link closed 7 the other side went away" in shown
    found = admin_client.get(reverse("admin:hydra_event_changelist"), {"node__id__exact": alpha.pk})
    assert {event.node_id for event in found.context["cl"].result_list} == {alpha.pk}


def test_nothing_can_be_added_or_changed(admin_client: Client) -> None:
    node = stopped()
    assert admin_client.get(reverse("admin:hydra_node_add")).status_code == 403
    assert admin_client.post(page(node), {"name": "other"}).status_code == 403
    assert admin_client.get(reverse("admin:hydra_event_add")).status_code == 403


# Actions.


@pytest.mark.parametrize(
    ("name", "arguments", "asked", "done"),
    [
        ("resign", [], "alpha leads term 4", "Asked alpha to stop leading."),
        ("drop", [12], "n2, id 12", "Asked alpha to drop n2."),
        ("disconnect_link", [1], "alpha, link 1", "Asked alpha to close link 1."),
    ],
)
def test_a_running_leader_is_asked_after_a_question(
    admin_client: Client, name: str, arguments: list[int], asked: str, done: str
) -> None:
    with running("alpha", leader_of_three()) as alpha:
        address = action(name, the_node().pk, *arguments)
        assert f'href="{address}"' in admin_client.get(page(the_node())).content.decode()
        assert asked in text_of(admin_client.get(address))
        assert alpha.commands == []
        assert done in text_of(admin_client.post(address, {"confirmed": "yes"}, follow=True))
        [command] = wait_until(lambda: alpha.commands, "the command is there")
    assert (command.action, command.number, command.by) == (name, arguments[0] if arguments else None, "admin")
    noted = AuditJournalEntry.objects.get(chain="operators")
    assert (noted.event, noted.record_id, noted.sender) == (name, "hydra:alpha", "admin")
    assert Event.objects.filter(kind="operator", text__startswith="admin asks to ").exists()


def test_nothing_is_offered_that_cannot_be_done(admin_client: Client) -> None:
    follower = voter_of_three()
    with running("alpha", follower):
        source = admin_client.get(page(the_node())).content.decode()
        assert "/resign/" not in source
        assert "/delete/" not in source
        response = admin_client.post(action("resign", the_node().pk), {"confirmed": "yes"}, follow=True)
        assert "'alpha' does not lead" in text_of(response)
    source = admin_client.get(page(the_node())).content.decode()
    assert "/resign/" not in source
    assert "/delete/" in source
    assert "data-every" not in source
    assert "This is what it has shown last" in source


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [("drop", [99], "knows no node 99 any more"), ("disconnect_link", [99], "has no link 99 any more")],
)
def test_an_object_that_is_gone_gets_a_message(
    admin_client: Client, name: str, arguments: list[int], words: str
) -> None:
    with running("alpha", leader_of_three()) as alpha:
        response = admin_client.post(action(name, the_node().pk, *arguments), {"confirmed": "yes"}, follow=True)
        assert words in text_of(response)
    assert alpha.commands == []
    assert not AuditJournalEntry.objects.exists()


def test_a_node_that_does_not_run_is_not_asked(admin_client: Client) -> None:
    node = stopped()
    response = admin_client.post(action("drop", node.pk, 12), {"confirmed": "yes"}, follow=True)
    assert "'alpha' does not run" in text_of(response)
    assert not AuditJournalEntry.objects.exists()


def test_a_node_is_forgotten_after_a_question_and_its_votes_stay_on_record(admin_client: Client) -> None:
    node = stopped(pledge=12)
    question = text_of(admin_client.get(action("delete", node.pk)))
    assert "it is another voter" in question
    assert "alpha: not running, vote no, 3 have one, last seen" in question
    response = admin_client.post(action("delete", node.pk), {"confirmed": "yes"}, follow=True)
    assert "Forgot alpha." in text_of(response)
    assert not Node.objects.exists()
    assert not Event.objects.exists()
    assert Vote.objects.get().voter == node.voter
    noted = AuditJournalEntry.objects.get(chain="operators")
    assert (noted.event, noted.record_id, noted.sender) == ("forget", "hydra:alpha", "admin")
    assert noted.recipient == f"voter {node.voter}, term 4"
    assert "There is no such Hydra node any more" in text_of(admin_client.get(page(node), follow=True))


def test_a_running_node_is_not_forgotten(admin_client: Client) -> None:
    stopped("beta")
    with running("alpha", leader_of_three()):
        data = {"action": "forget_selected", "_selected_action": [the_node().pk, the_node("beta").pk]}
        assert "alpha: leading" in text_of(admin_client.post(reverse(LIST), data))
        admin_client.post(reverse(LIST), {**data, "action": "delete_selected", "post": "yes"})
        assert Node.objects.count() == 2, "Django's own deletion asks no running node"
        shown = text_of(admin_client.post(reverse(LIST), {**data, "confirmed": "yes"}, follow=True))
        assert "The node 'alpha' runs: stop it first." in shown
        assert "Forgot beta." in shown
    assert [node.name for node in Node.objects.all()] == ["alpha"]
    assert [entry.record_id for entry in AuditJournalEntry.objects.all()] == ["hydra:beta"]


def test_a_user_with_view_permission_only_is_offered_nothing(unprivileged: Client) -> None:
    user = User.objects.get(username="staff")
    assert unprivileged.get(reverse(LIST)).status_code == 403
    user.user_permissions.add(Permission.objects.get(content_type__app_label="hydra", codename="view_node"))
    with running("alpha", leader_of_three()) as alpha:
        source = unprivileged.get(page(the_node())).content.decode()
        assert not [word for word in ("/resign/", "/drop/", "/close-link/", "/delete/") if word in source]
        for address in (action("resign", the_node().pk), action("delete", the_node().pk)):
            assert unprivileged.post(address, {"confirmed": "yes"}).status_code == 403
    assert alpha.commands == []
    assert Node.objects.exists()


# Tenures.


def test_the_list_draws_leader_terms_and_irc_leases_also_of_forgotten_nodes(admin_client: Client) -> None:
    with running("alpha", leader_of_three()):
        wait_until(lambda: Tenure.objects.filter(name="alpha").count() == 2, "its tenures")
    rows("update hydra_tenure set began_at = now() - interval '10 min', until = now() - interval '5 min'")
    now = timezone.now()
    for n, name in enumerate(("beta", "gone")):
        began, until = now - timedelta(hours=n + 1), now - timedelta(minutes=30 + n)
        Tenure.objects.create(voter="0" * 16, name=name, kind="lead", term=2 - n, began_at=began, until=until)
    began, until = now - timedelta(days=3), now - timedelta(days=2)
    Tenure.objects.create(voter="0" * 16, name="long ago", kind="irc", term=1, began_at=began, until=until)
    response = admin_client.get(reverse(LIST))
    shown, html = text_of(response), response.content.decode()
    assert "3 terms, nodes that led or held IRC: alpha, beta, gone." in shown
    assert "5 minutes alpha led 4" in shown
    assert "5 minutes alpha held IRC 4" in shown
    assert html.partition('id="chart-tenures"')[2].count("<rect class=\"c1\" x=") == 3
    assert "long ago" not in shown
    assert "long ago held IRC 1" in text_of(admin_client.get(reverse(LIST), {"span": "month"}))


def test_the_list_says_so_when_no_node_led(admin_client: Client) -> None:
    assert "No node led." in text_of(admin_client.get(reverse(LIST), {"span": "nonsense"}))


# Among the connections of clients.


def test_links_are_listed_among_connections_and_closed_from_the_shell(admin_client: Client) -> None:
    with running("alpha", leader_of_three()) as alpha:
        node = the_node()
        shown = text_of(admin_client.get(reverse("admin:queues_connection_changelist")))
        assert f"hydra:{node.pk}-1 hydra 10.0.0.1 n1 alpha" in shown
        with pytest.raises(ConnectionGone):
            connections.disconnect_id(f"hydra:{node.pk}-9", "shell:me")
        connections.disconnect_id(f"hydra:{node.pk}-1", "shell:me")
        command = wait_until(lambda: alpha.commands, "the command")[0]
    assert (command.action, command.number, command.by) == (CommandAction.DISCONNECT_LINK, 1, "shell:me")
    assert ("disconnect_link", "hydra:alpha") in AuditJournalEntry.objects.values_list("event", "record_id")


def test_links_of_nodes_that_have_ended_are_not_listed(admin_client: Client) -> None:
    node = stopped()
    shown = text_of(admin_client.get(reverse("admin:queues_connection_changelist")))
    assert f"hydra:{node.pk}-1" not in shown
