"""Connections of clients in the operators' pages, and from the shell."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.contrib.contenttypes.models import ContentType
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django.fixtures import DjangoAssertNumQueries

from queues.errors import OperationError
from queues.formats.connection_ids import connection_id
from queues.models import AuditJournalEntry, Connection, ConnectionTotal, Node
from queues.operations import connections as operations
from queues.operations.connections import OtherConnection
from queues.operations.keys import create_key
from tests.queues.admin.test_admin import LOGIN, act, address
from tests.queues.admin.test_admin import unprivileged as unprivileged  # a fixture
from tests.queues.admin.test_worker import text_of
from tests.queues.shell import Shell
from tests.queues.store import listening, make_node

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def watch(monkeypatch: pytest.MonkeyPatch) -> operations.Watch:
    """One that has told nodes nothing yet, and waits for none."""
    monkeypatch.setattr(operations, "TIMEOUT", 0.0)
    monkeypatch.setattr(operations, "watch", operations.Watch())
    return operations.watch


def make_connection(number: int = 1, node: Node | None = None, **fields: Any) -> Connection:
    node = node or make_node()
    values = {
        "protocol": "blipmq", "address": f"192.0.2.7:{number}", "connected_at": timezone.now(), "messages_in": 0,
        "messages_out": 0, "in_rate": 0.0, "out_rate": 0.0, "rate": 0.0, "unacked": 0, "held_bytes": 0, **fields,
    }  # fmt: skip
    return Connection.objects.create(id=connection_id(node.pk, number), node=node, **values)


def make_total(node: Node, connections: int, protocol: str = "blipmq", **rates: float) -> None:
    values = {"in_rate": 0.0, "out_rate": 0.0, **rates}
    ConnectionTotal.objects.create(node=node, protocol=protocol, connections=connections, **values)


def button(connection: Connection) -> str:
    return reverse("admin:queues_connection_disconnect", args=[connection.pk])


def recorded() -> list[tuple[str, str, str]]:
    return list(AuditJournalEntry.objects.order_by("id").values_list("event", "record_id", "recipient"))


class Links:
    """A source with one connection."""

    word = "other"

    def __init__(self) -> None:
        self.ended: list[str] = []

    def connections(self, most: int) -> Sequence[OtherConnection]:
        return [OtherConnection(
            id="other:1-2", protocol="other", address="192.0.2.9:6174", name="beta", node="alpha",
            connected_at=timezone.now(), page="/its/page/",
        )]  # fmt: skip

    def disconnect(self, id: str, by: str) -> None:
        if id != "other:1-2":
            raise OperationError("There is none.")
        self.ended.append(id)


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> Links:
    source = Links()
    monkeypatch.setattr(operations, "sources", [source])
    return source


# Looking.


def test_the_list_shows_clients_their_nodes_rates_and_held_messages(
    admin_client: Client, links: Links
) -> None:
    key, _ = create_key("phones")
    since = timezone.now() - timedelta(minutes=3, seconds=9)
    shown = make_connection(
        5, key=key, in_rate=1234.5, out_rate=2.0, unacked=17, held_bytes=4096, connected_at=since, name=""
    )
    worker = make_connection(6, protocol="overhop", name="6b1f0c9a-0000-4000-8000-000000000001")
    peer = make_connection(7, protocol="peerbus", name="bob")
    response = admin_client.get(address("connection"))
    text, html = text_of(response), response.content.decode()
    assert f"{shown} blipmq 192.0.2.7:5 1,234.5/s 2/s 17 4.1 kB phones - 3 minutes ago {shown.node}" in text
    one = text_of(admin_client.get(address("connection", "change", shown.pk)))
    assert f"{since:%Y-%m-%d %H:%M:%S}, 3 minutes ago" in one
    for page in (
        reverse("admin:queues_apikey_change", args=[key.pk]),
        reverse("admin:queues_worker_change", args=[worker.name]),
        reverse("admin:queues_mailbox_changelist") + f"?q={peer.name}",
        "/its/page/",
    ):
        assert f'href="{page}"' in html
    assert "other:1-2 other 192.0.2.9:6174 beta alpha" in text


@pytest.mark.parametrize("rows", [1, 7])
def test_the_list_takes_as_many_queries_for_many_connections_as_for_one(
    admin_client: Client, django_assert_num_queries: DjangoAssertNumQueries, links: Links, rows: int
) -> None:
    for n in range(rows):
        make_connection(n, key=create_key(f"key {n}")[0])
    with django_assert_num_queries(LOGIN + 5):  # nodes are told; totals, what is listed, the page, nodes to choose from
        response = admin_client.get(address("connection"))
    assert len(response.context["cl"].result_list) == rows


def test_the_page_of_one_takes_few_queries(
    admin_client: Client, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    one = make_connection(3, key=create_key("phones")[0], unacked=2)
    ContentType.objects.get_for_model(Connection)  # else the first page of a process asks for it
    with django_assert_num_queries(LOGIN + 2):  # nodes are told
        shown = text_of(admin_client.get(address("connection", "change", one.pk)))
    assert "192.0.2.7:3" in shown
    assert "phones" in shown


@pytest.mark.django_db(transaction=True)
def test_who_opens_the_pages_has_nodes_told_so_again_every_few_seconds(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = make_connection()
    monkeypatch.setattr(operations, "AGAIN", 3600.0)
    with listening() as heard:
        for page in (address("connection"), address("connection", "change", connection.pk)) * 5:
            assert admin_client.get(page).status_code == 200
        monkeypatch.setattr(operations, "AGAIN", 0.0)
        admin_client.get(address("connection", "change", connection.pk))
        admin_client.get(address("connection"))
        admin_client.get(address("queue"))
        assert heard.take("watched") == ["connections"] * 3


def test_figures_from_before_a_look_are_said_to_be_old(admin_client: Client) -> None:
    node = make_node()
    make_connection(node=node)
    make_total(node, 1)
    old = "up to a minute old"
    assert old not in text_of(admin_client.get(address("connection")))
    ConnectionTotal.objects.update(at=timezone.now() - timedelta(seconds=20))
    assert old in text_of(admin_client.get(address("connection")))


def test_a_shortened_list_says_so_and_has_the_totals_of_all(admin_client: Client, links: Links) -> None:
    first, second = make_node(), make_node()
    make_connection(1, first)
    make_total(first, 1, in_rate=1.5)
    make_total(second, 12_344, in_rate=1000.0, out_rate=3.0)
    shown = text_of(admin_client.get(address("connection")))
    assert "blipmq 12,345 1 1,001.5/s 3/s" in shown
    assert "Not all are listed: of each node the 100 latest and the busiest, 500 together." in shown
    ConnectionTotal.objects.filter(node=second).delete()
    assert "Not all are listed" not in text_of(admin_client.get(address("connection")))


def test_the_list_goes_page_by_page_in_the_order_that_was_asked_for(
    admin_client: Client, links: Links, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queues.admin.connection.ConnectionAdmin.list_per_page", 2)
    node, now = make_node(), timezone.now()
    for n, (rate, unacked) in enumerate([(1.5, 9), (7.0, 0), (1.5, 3), (0.0, 5)]):
        make_connection(n, node, rate=rate, unacked=unacked, connected_at=now - timedelta(minutes=n))
    orders = {
        "": [1, 0, 2, 3], "busiest": [1, 0, 2, 3], "unsettled": [0, 3, 2, 1], "latest": [0, 1, 2, 3],
        "oldest": [3, 2, 1, 0], "nonsense": [1, 0, 2, 3],
    }  # fmt: skip
    for word, numbers in orders.items():
        page = admin_client.get(address("connection"), {"order": word} if word else {})
        further = page.context["cl"].next_page
        next_page = admin_client.get(address("connection") + further)
        assert not next_page.context["cl"].next_page
        shown = [*page.context["cl"].result_list, *next_page.context["cl"].result_list]
        assert [one.pk & 0xFFFFFFFF for one in shown] == numbers, word


def test_connections_are_found_by_address_name_key_protocol_and_node(admin_client: Client, links: Links) -> None:
    node = make_node()
    make_connection(1, node, address="192.0.2.1:1", key=create_key("phones")[0])
    make_connection(2, protocol="peerbus", address="198.51.100.1:1", name="bob")
    asked: list[tuple[dict[str, Any], list[int]]] = [
        ({"q": "192.0.2"}, [1]), ({"q": "bob"}, [2]), ({"q": "phones"}, [1]), ({"q": "0.1"}, []),
        ({"protocol__exact": "peerbus"}, [2]), ({"node__id__exact": node.pk}, [1]),
    ]  # fmt: skip
    for query, numbers in asked:
        found = admin_client.get(address("connection"), query).context["cl"].result_list
        assert [one.pk & 0xFFFFFFFF for one in found] == numbers, query


def test_the_page_of_a_connection_that_has_ended_leads_to_the_list(admin_client: Client) -> None:
    one = make_connection()
    Connection.objects.all().delete()
    for page in (address("connection", "change", one.pk), button(one)):
        response = admin_client.get(page, follow=True)
        assert response.redirect_chain[-1][0] == address("connection")
        assert "has ended" in text_of(response)


# Ending them.


def test_a_disconnect_is_asked_for_sent_to_the_node_recorded_and_logged(admin_client: Client) -> None:
    key, _ = create_key("phones")
    one, other = make_connection(1, key=key), make_connection(2, protocol="sspq")
    question = text_of(act(admin_client, "connection", "disconnect", one.pk, other.pk))
    assert f"{one}: blipmq from 192.0.2.7:1, key phones" in question
    assert recorded() == []
    done = act(admin_client, "connection", "disconnect", one.pk, other.pk, confirmed="yes")
    assert f"Disconnected {one}." in text_of(done)
    assert f"Disconnected {other}." in text_of(done)
    assert sorted(recorded()) == [
        ("disconnect", f"connection:{one}", f"blipmq 192.0.2.7:1 key {key.pk}"),
        ("disconnect", f"connection:{other}", "sspq 192.0.2.7:2"),
    ]
    assert LogEntry.objects.filter(change_message="Disconnected.").count() == 2


@pytest.mark.django_db(transaction=True)
def test_the_button_of_a_page_tells_the_connections_node_its_number(admin_client: Client) -> None:
    one = make_connection(77)
    assert "Yes, disconnect" in admin_client.get(button(one)).content.decode()
    with listening() as heard:
        assert admin_client.post(button(one), {"confirmed": "yes"}).status_code == 302
        assert heard.take("disconnect") == [[77]]


def test_a_connection_whose_node_has_ended_is_not_said_to_be_disconnected(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = make_connection()
    monkeypatch.setattr(Node.objects, "using", lambda using: Node.objects.none())
    done = admin_client.post(button(one), {"confirmed": "yes"}, follow=True)
    assert f"The node of the connection {one} has ended." in text_of(done)
    assert recorded() == []


def test_pages_need_view_permission_and_the_button_permission_to_operate(unprivileged: Client) -> None:
    one = make_connection()
    for page in (address("connection"), address("connection", "change", one.pk), button(one)):
        assert unprivileged.get(page).status_code == 403
    user = User.objects.get(username="staff")
    user.user_permissions.add(Permission.objects.get(codename="view_connection"))
    assert button(one) not in unprivileged.get(address("connection", "change", one.pk)).content.decode()
    assert "disconnect" not in unprivileged.get(address("connection")).content.decode()
    assert unprivileged.post(button(one), {"confirmed": "yes"}).status_code == 403
    user.user_permissions.add(Permission.objects.get(codename="change_connection"))
    assert button(one) in unprivileged.get(address("connection", "change", one.pk)).content.decode()
    assert unprivileged.post(button(one), {"confirmed": "yes"}).status_code == 302


def test_a_clients_name_is_shown_as_text(admin_client: Client) -> None:
    make_connection(protocol="peerbus", name='<b>"&?x=1', address="<i>")
    html = admin_client.get(address("connection")).content.decode()
    assert "<b>" not in html.partition('id="result_list"')[2].partition("</table>")[0]
    assert "<i>" not in html.partition('id="result_list"')[2].partition("</table>")[0]


# From the shell.


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Shell:
    return Shell(monkeypatch, capfd)


def test_the_shell_lists_connections_the_busiest_first_and_says_what_is_cut(run: Shell, links: Links) -> None:
    idle = make_connection(1, key=create_key("phones")[0])
    busy = make_connection(2, rate=5.0, in_rate=5.0)
    make_total(idle.node, 1000)
    shown = run("connections")
    lines = shown.out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [str(busy), str(idle), "other:1-2"]
    assert "2 of 1,000 connections over blipmq are listed." in shown.err
    told = run("connections", "--json").json
    assert told["totals"]["blipmq"] == {"connections": 1000, "listed": 2, "in_rate": 0.0, "out_rate": 0.0}
    assert told["connections"][1]["key"] == "phones"
    assert [one["id"] for one in told["connections"]] == [str(busy), str(idle), "other:1-2"]
    assert len(run("connections", "--json", "--limit", "1").json["connections"]) == 2


def test_the_shell_ends_connections_of_every_source(run: Shell, links: Links) -> None:
    one = make_connection()
    assert run("connections", "--disconnect", str(one), "other:1-2").status == 0
    assert links.ended == ["other:1-2"]
    assert [row[:2] for row in recorded()] == [("disconnect", f"connection:{one}")]


@pytest.mark.parametrize("id", ["1-1", "x", "1-", "99999999999-1", "1-99999999999", "other:7", "none:1", "-1-1", "²-1"])
def test_the_shell_refuses_ids_that_no_connection_has(run: Shell, links: Links, id: str) -> None:
    outcome = run("connections", f"--disconnect={id}")
    assert outcome.status == 1
    assert outcome.err.startswith("CommandError: There is no")
