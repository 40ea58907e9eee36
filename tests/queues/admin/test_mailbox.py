"""Peers and their letters in the operators' pages."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django.fixtures import DjangoAssertNumQueries

from queues.admin import audit_links, payload
from queues.audit.chains import PEERBUS, append
from queues.audit.events import AuditEvent
from queues.engine.uuids import message_uuid
from queues.models import ArchivedMessage, AuditChain, AuditJournalEntry, Content, Mailbox, Message, Queue, State
from queues.operations import mailboxes
from queues.operations.keys import create_key
from tests.queues.admin.test_admin import LOGIN, act, address
from tests.queues.admin.test_admin import unprivileged as unprivileged  # a fixture
from tests.queues.admin.test_worker import text_of
from tests.queues.operations.test_mailboxes import letters, make_peer
from tests.queues.store import make_node, make_queue, store

pytestmark = pytest.mark.django_db


def page(peer: Mailbox) -> str:
    return address("mailbox", "change", peer.pk)


def action(peer: Mailbox, name: str) -> str:
    return reverse(f"admin:queues_mailbox_{name}", args=[peer.pk])


# Looking.


def test_the_list_shows_connected_peers_their_nodes_and_waiting_letters(admin_client: Client) -> None:
    key, _ = create_key("phones")
    bob = make_peer("bob", make_node(), key)
    letters(bob, count=1234), letters(bob, State.LEASED, 2), letters(bob, State.DEAD, 3)
    carol = make_peer("carol")
    Mailbox.objects.filter(pk=carol.pk).update(left_at=timezone.now() - timedelta(minutes=3, seconds=9))
    make_peer("dave")
    response = admin_client.get(address("mailbox"))
    shown = text_of(response)
    assert f"bob phones connected 5 minutes ago {bob.node} 1,234 2 3" in shown
    assert "carol - left 3 minutes ago - 0 0 0" in shown
    assert "dave - never connected - 0 0 0" in shown
    assert f"?queue={bob.queue_id}&amp;state=0" in response.content.decode()


@pytest.mark.parametrize("rows", [1, 5])
def test_the_list_takes_as_many_queries_for_many_peers_as_for_one(
    admin_client: Client, django_assert_num_queries: DjangoAssertNumQueries, rows: int
) -> None:
    for n in range(rows):
        letters(make_peer(f"peer {n}", make_node(), create_key(f"key {n}")[0]))
    with django_assert_num_queries(LOGIN + 3):  # how many peers there are, the page, the counts of letters
        response = admin_client.get(address("mailbox"))
    assert len(response.context["cl"].result_list) == rows


def test_peers_are_found_by_name_and_by_whether_they_are_connected(admin_client: Client) -> None:
    make_peer("bob", make_node()), make_peer("bobby"), make_peer("alice", make_node())
    queries: list[tuple[dict[str, str], list[str]]] = [
        ({}, ["alice", "bob", "bobby"]),
        ({"q": "bob"}, ["bob", "bobby"]),
        ({"connected": "yes"}, ["alice", "bob"]),
        ({"connected": "no"}, ["bobby"]),
        ({"q": "bob", "connected": "yes"}, ["bob"]),
        ({"connected": "nonsense"}, ["alice", "bob", "bobby"]),
    ]
    for query, names in queries:
        found = admin_client.get(address("mailbox"), query).context["cl"].result_list
        assert [peer.name for peer in found] == names


def test_a_peers_page_shows_owner_connection_letters_and_audit_rows(admin_client: Client) -> None:
    key, _ = create_key("phones")
    bob = make_peer("bob", make_node(), key)
    letters(bob, count=3), letters(bob, State.LEASED, 2)
    append(PEERBUS, [AuditEvent("send", "m1", "alice", "bob"), AuditEvent("send", "m2", "alice", "carol")])
    append(PEERBUS, [AuditEvent("deliver", "m1", "alice", "bob"), AuditEvent("ack", "m1", "bob", "")])
    response = admin_client.get(page(bob))
    html, shown = response.content.decode(), text_of(response)
    for link in (
        reverse("admin:queues_apikey_change", args=[key.pk]), reverse("admin:queues_node_change", args=[bob.node_id]),
        f"{address('message')}?queue={bob.queue_id}&amp;state=0",
        f"{address('auditrow')}?chain={AuditChain.objects.get().pk}&amp;q=id%3Am1",
    ):  # fmt: skip
        assert f'href="{link}"' in html
    assert "Ready: 3 Unacknowledged: 2 Dead: 0" in shown
    assert 'data-every="3"' in html
    rows = shown.partition("Seq When Event Id From To")[2]
    assert [word for word in rows.split() if word in ("send", "deliver", "ack", "m2")] == ["ack", "deliver", "send"]


def test_a_peer_without_owner_or_connection_is_shown_as_such(admin_client: Client) -> None:
    shown = text_of(admin_client.get(page(make_peer("bob"))))
    assert "Owner: none: the next API key to register may have the name" in shown
    assert "Connection: never connected Node: -" in shown
    assert "Newest audit rows: none" in shown


def test_the_rows_of_letters_that_wait_are_shown_however_long_ago_they_were_sent(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_links, "NEWEST_ROWS", 2)
    bob = make_peer("bob", make_node())
    letters(bob, key="waits", published_at=timezone.now() - timedelta(hours=1))
    letters(bob, State.LEASED, key="out", published_at=timezone.now() - timedelta(hours=1))
    [routed] = store(bob.queue, published_at=timezone.now() - timedelta(hours=1))
    uuid = str(message_uuid(bob.queue.uuid, routed.pk))
    append(PEERBUS, [AuditEvent("send", id, "alice", "bob") for id in ("waits", "out", "gone", uuid)])
    append(PEERBUS, [AuditEvent("send", f"other {n}", "alice", "carol") for n in range(5)])
    chain, rows = audit_links.rows_of_peer(Mailbox.objects.select_related("queue").get())
    assert chain == AuditChain.objects.get().pk
    assert [row.record_id for row in rows] == [uuid, "out", "waits"]


@pytest.mark.parametrize("count", [1, 30])
def test_a_peers_page_takes_as_many_queries_for_many_letters_as_for_one(
    admin_client: Client, django_assert_num_queries: DjangoAssertNumQueries, count: int
) -> None:
    bob = make_peer("bob", make_node())
    for n in range(count):
        letters(bob, key=f"m{n}")
    append(PEERBUS, [AuditEvent("send", f"m{n}", "alice", "bob") for n in range(count)])
    # The peer; the counts; the chain's head and its newest rows; letters that wait, that are out, and their rows.
    with django_assert_num_queries(LOGIN + 7):
        admin_client.get(page(bob))


def test_the_page_of_a_peer_that_was_deleted_leads_to_the_list(admin_client: Client) -> None:
    bob = make_peer("bob")
    mailboxes.delete_mailbox("bob")
    for place in (page(bob), action(bob, "disconnect")):
        response = admin_client.get(place, follow=True)
        assert response.redirect_chain == [(address("mailbox"), 302)]
        assert "There is no such peer any more." in text_of(response)


# Acting.


@pytest.mark.parametrize("by_list", [True, False])
@pytest.mark.parametrize(
    ("name", "said", "logged"), [("disconnect", "Disconnected bob.", "Disconnected."),
    ("free_name", "Freed the name bob.", "Freed the name.")],
)  # fmt: skip
def test_a_peer_is_disconnected_or_its_name_freed_after_a_question(
    admin_client: Client, by_list: bool, name: str, said: str, logged: str
) -> None:
    key, _ = create_key("phones")
    bob = make_peer("bob", make_node(), key)
    letters(bob, State.LEASED, 2)

    def answer(**more: str) -> Any:
        if by_list:
            return act(admin_client, "mailbox", name, bob.pk, **more)
        return admin_client.post(action(bob, name), more, follow=True)

    assert "bob: connected 5 minutes ago, 0 ready, 2 unacknowledged, 0 dead" in text_of(answer())
    bob.refresh_from_db()
    assert bob.node_id is not None
    response = answer(confirmed="yes")
    assert said in text_of(response)
    assert response.redirect_chain == [(address("mailbox") if by_list else page(bob), 302)]
    owner = None if name == "free_name" else key
    assert Mailbox.objects.filter(pk=bob.pk, node=None, owner=owner).exists()
    assert LogEntry.objects.get().change_message == logged
    noted = AuditJournalEntry.objects.get(chain="operators")
    assert (noted.event, noted.record_id, noted.sender) == (name.removesuffix("_name"), "peer:bob", "admin")


@pytest.mark.parametrize("by_list", [True, False])
def test_deleting_a_peer_asks_first_and_takes_its_letters(admin_client: Client, by_list: bool) -> None:
    bob = make_peer("bob")
    letters(bob, count=2)

    def delete(**more: str) -> Any:
        if by_list:
            return act(admin_client, "mailbox", "delete_selected", bob.pk, **more)
        return admin_client.post(address("mailbox", "delete", bob.pk), more, follow=True)

    assert "bob: never connected, 2 ready, 0 unacknowledged, 0 dead" in text_of(delete())
    assert Mailbox.objects.exists()
    assert "Deleted bob with 2 messages" in text_of(delete(confirmed="yes", typed="bob"))
    assert not Mailbox.objects.exists()
    assert not Queue.objects.exists()
    assert AuditJournalEntry.objects.filter(event="delete", record_id="peer:bob", sender="admin").exists()


def test_the_queue_of_a_peer_is_not_deleted_by_itself(admin_client: Client) -> None:
    bob = make_peer("bob")
    letters(bob, count=2)
    shown = text_of(act(admin_client, "queue", "delete_selected", bob.queue_id, confirmed="yes", typed="_peer/bob"))
    assert "'_peer/bob' is the mailbox of the peer 'bob': delete the peer." in shown
    assert Message.objects.filter(queue=bob.queue_id).count() == 2


def test_a_failed_action_on_a_peer_is_reported_and_the_others_are_done(admin_client: Client) -> None:
    away, here = make_peer("away"), make_peer("here", make_node())
    shown = text_of(act(admin_client, "mailbox", "disconnect", away.pk, here.pk, confirmed="yes"))
    assert "'away' is not connected." in shown
    assert "Disconnected here." in shown


def test_a_user_with_view_permission_only_is_offered_no_action(unprivileged: Client) -> None:
    user = User.objects.get()
    user.user_permissions.set(Permission.objects.filter(codename="view_mailbox"))
    bob = make_peer("bob", make_node())
    for place in (address("mailbox"), page(bob)):
        html = unprivileged.get(place).content.decode()
        for word in ('value="disconnect"', 'value="free_name"', 'value="delete_selected"', "Free the name", "/delete/"):
            assert word not in html
    for name in ("disconnect", "free_name"):
        act(unprivileged, "mailbox", name, bob.pk, confirmed="yes")
        assert unprivileged.post(action(bob, name), {"confirmed": "yes"}).status_code == 403
    typed = {"confirmed": "yes", "typed": "bob"}
    assert unprivileged.post(address("mailbox", "delete", bob.pk), typed).status_code == 403
    bob.refresh_from_db()
    assert bob.node_id is not None
    user.user_permissions.set([])
    assert unprivileged.get(address("mailbox")).status_code == 403
    assert unprivileged.get(page(bob)).status_code == 403


def test_peers_are_not_added_or_edited_by_hand(admin_client: Client) -> None:
    bob = make_peer("bob")
    assert admin_client.get(address("mailbox", "add")).status_code == 403
    assert admin_client.post(page(bob), {"name": "eve"}).status_code == 403
    assert Mailbox.objects.get().name == "bob"


def test_a_peers_name_is_shown_as_text(admin_client: Client) -> None:
    name = "<script>alert(1)</script>"
    bob = make_peer(name, make_node())
    [letter] = letters(bob, key=name, headers={"from": name})
    append(PEERBUS, [AuditEvent(name, name, name, name)])
    for place in (address("mailbox"), page(bob), action(bob, "disconnect"), address("message", "change", letter.pk)):
        html = admin_client.get(place).content.decode()
        assert "&lt;script&gt;alert" in html
        assert name not in html


# Letters.

ENVELOPE = b'{"id":"m1","from":"alice","to":"bob","body":{"text":"caf\xc3\xa9"}}'


def test_a_letters_page_shows_its_sender_its_key_and_the_envelope(admin_client: Client) -> None:
    append(PEERBUS, [AuditEvent("send", "m1", "alice", "bob")])
    [letter] = letters(make_peer("bob"), key="m1", payload=ENVELOPE)
    shown = text_of(admin_client.get(address("message", "change", letter.pk)))
    assert re.search(r"Key: (Public key; [^.]+\. )?m1", shown)  # Django 6.1 shows the help before the value
    for part in ("Sender: alice", "peerbus envelope", '"body": { "text": "caf\\u00e9" }', "Audit: peerbus"):
        assert part in shown


def test_a_finished_letters_page_shows_its_sender_if_that_was_kept(admin_client: Client) -> None:
    bob, now = make_peer("bob"), timezone.now()
    for id, kept in ((1, {"headers": {"from": "alice"}, "payload": ENVELOPE}), (2, {})):
        ArchivedMessage.objects.create(
            id=id, queue=bob.queue, outcome=0, attempts=0, published_at=now, finished_at=now, size=9, key="m1",
            content=Content.LETTER, **kept,
        )  # fmt: skip
    whole, rest = (text_of(admin_client.get(address("archivedmessage", "change", id))) for id in (1, 2))
    assert "Sender: alice" in whole
    assert "peerbus envelope" in whole
    assert "Sender: -" in rest


def test_a_message_that_is_no_letter_has_no_sender(admin_client: Client) -> None:
    [message] = store(make_queue(), headers={"from": "somewhere"})
    assert "Sender: -" in text_of(admin_client.get(address("message", "change", message.pk)))


def test_an_envelope_that_is_no_json_is_shown_as_what_it_is() -> None:
    assert payload.shown(b"{nope", 5, Content.LETTER) == ("text, 5 bytes", "{nope")
    assert payload.shown(b" \x7f", 2, Content.LETTER)[0].startswith("hexadecimal")
    kind, text = payload.shown(b' {"body":"\x7f"}', 13, Content.LETTER)
    assert (kind, text) == ("peerbus envelope", '{\n  "body": "\\u007f"\n}')


def test_letters_that_went_elsewhere_are_found_by_their_key_and_messages_by_their_number() -> None:
    queue = make_queue("orders")
    bob = make_peer("bob")
    assert audit_links.records_of(queue, 7, None, "k") == {"queue:orders": "7"}
    assert audit_links.records_of(queue, 7, Content.LETTER, "m1") == {"peerbus": "m1", "queue:orders": "7"}
    assert audit_links.records_of(None, 7, Content.LETTER, "m1") == {"peerbus": "m1"}
    assert audit_links.records_of(None, 7, None, None) == {}
    routed = {"peerbus": str(message_uuid(bob.queue.uuid, 7)), "queue:_peer/bob": "7"}
    assert audit_links.records_of(bob.queue, 7, None, None) == routed
    assert not Message.objects.exists()
