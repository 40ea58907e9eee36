"""Operators' actions, in the admin and in the shell, are in the audit chain "operators", with their names."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.core.exceptions import ValidationError
from django.db import transaction
from django.test import Client
from django.urls import reverse

from queues.audit.chains import OPERATORS, append, seal
from queues.audit.events import MAX_ID, AuditEvent, event_bytes
from queues.audit.verify import verify
from queues.models import (
    ApiKey,
    AuditJournalEntry,
    AuditRow,
    Message,
    PeriodicJob,
    Queue,
    QueueKind,
    Route,
    State,
    Subscription,
)
from queues.operations import audit_log, keys
from queues.operations import messages as message_operations
from queues.operations import queues as queue_operations
from queues.operations.periodic import add_periodic
from tests.queues.admin.test_admin import act, address, confirm, policy, subscription, text_of
from tests.queues.admin.test_admin import unprivileged as unprivileged  # a fixture
from tests.queues.operations.test_mailboxes import make_peer
from tests.queues.shell import Shell
from tests.queues.store import make_node, make_queue, store

Row = tuple[str, str, str, str]

#: The user who runs the tests, as the chain has the name.
SHELL = f"shell:{pwd.getpwuid(os.getuid()).pw_name}"


def recorded(chain: str = OPERATORS) -> list[Row]:
    """Take the journal's entries for a chain: event, id, from, to."""
    entries = AuditJournalEntry.objects.filter(chain=chain)
    found = list(entries.values_list("event", "record_id", "sender", "recipient"))
    entries.delete()
    return found


def submit(client: Client, page: str, **changes: object) -> None:
    """Change some fields of a form and send it, as a browser does; None takes the tick from a box."""
    data: dict[str, object] = {}
    for field in client.get(page).context["adminform"].form:
        value = field.value()
        if value is not False:
            data[field.html_name] = "" if value is None else value
        if field.field.show_hidden_initial:
            data[field.html_initial_name] = "" if value is None else value
    data = {name: value for name, value in (data | changes).items() if value is not None}
    assert client.post(page, data).status_code == 302


@pytest.fixture(autouse=True)
def _database(db: None) -> None:
    """Every test has one."""


# In the admin.


def test_additions_changes_and_deletions_are_recorded_with_user_and_fields(admin_client: Client) -> None:
    admin_client.post(address("queue", "add"), policy())
    queue = Queue.objects.get()
    submit(admin_client, address("queue", "change", queue.pk), max_length="7", paused="on")
    submit(admin_client, address("queue", "change", queue.pk))  # changes nothing
    store(queue, count=3)
    admin_client.post(address("queue", "delete", queue.pk), {"confirmed": "yes", "typed": "orders"})
    assert recorded() == [
        ("add", "queue:orders", "admin", ""),
        ("change", "queue:orders", "admin", "Paused, Max length"),
        ("delete", "queue:orders", "admin", "3 ready, 0 unacknowledged, 0 delayed, 0 dead"),
    ]


def test_actions_on_queues_are_recorded_with_what_they_did(admin_client: Client) -> None:
    orders, other = make_queue(), make_queue("other")
    store(orders, count=2), store(orders, State.DELAYED)
    act(admin_client, "queue", "pause", orders.pk, other.pk)
    act(admin_client, "queue", "resume", orders.pk)
    act(admin_client, "queue", "purge", orders.pk)
    assert recorded() == [
        ("pause", "queue:orders", "admin", ""),
        ("pause", "queue:other", "admin", ""),
        ("resume", "queue:orders", "admin", ""),
    ]
    act(admin_client, "queue", "purge", orders.pk, confirmed="yes", typed="orders")
    act(admin_client, "queue", "delete_selected", other.pk, confirmed="yes", typed="other")
    assert recorded() == [
        ("purge", "queue:orders", "admin", "2 ready, 1 delayed"),
        ("delete", "queue:other", "admin", "0 ready, 0 unacknowledged, 0 delayed, 0 dead"),
    ]


@pytest.mark.parametrize("event", ["put-back", "remove"])
def test_each_dead_letter_that_was_put_back_or_removed_is_recorded(admin_client: Client, event: str) -> None:
    queue = make_queue(audited=True)
    dead = store(queue, State.DEAD, 2, origin_id=None)
    Message.objects.filter(pk=dead[0].pk).update(origin_id=17)
    ready = store(queue)[0]
    recorded("queue:orders")
    if event == "put-back":
        confirm(admin_client, act(admin_client, "message", "put_back", *(message.pk for message in [*dead, ready])))
    else:
        message_operations.remove_messages("orders", [message.pk for message in dead], by="admin")
    assert [row for row in recorded() if row[1].startswith("message:")] == [
        (event, "message:17", "admin", "orders"), (event, f"message:{dead[1].pk}", "admin", "orders"),
    ]  # fmt: skip
    to = "orders" if event == "put-back" else ""
    assert recorded("queue:orders") == [(event, "17", "admin", to), (event, str(dead[1].pk), "admin", to)]


def test_a_purge_of_an_audited_queue_is_recorded_for_each_message(admin_client: Client) -> None:
    queue = make_queue(audited=True)
    messages = store(queue, count=2)
    recorded("queue:orders")
    act(admin_client, "queue", "purge", queue.pk, confirmed="yes", typed="orders")
    assert recorded("queue:orders") == [("purge", str(message.pk), "admin", "") for message in messages]


def test_keys_are_recorded_without_their_values(admin_client: Client) -> None:
    secret = "the-very-secret-value"
    admin_client.post(
        address("apikey", "add"), {
            "name": "billing", "value": secret, "protocols": ["blipmq"], "publish": "*", "consume": "*", "manage": ""
        }
    )
    key = ApiKey.objects.get()
    submit(admin_client, address("apikey", "change", key.pk), protocols=["sspq"], publish="orders")
    act(admin_client, "apikey", "revoke", key.pk, confirmed="yes")
    found = recorded()
    assert found == [
        ("add", "key:billing", "admin", ""),
        ("change", "key:billing", "admin", "protocols, Publish"),
        ("revoke", "key:billing", "admin", ""),
    ]
    assert secret[:4] not in str(found)


@pytest.mark.parametrize("by_action", [True, False])
def test_routes_are_recorded_by_their_ends(admin_client: Client, by_action: bool) -> None:
    admin_client.post(address("route", "add"), {"source": "topic:a", "target": "b"})
    route = Route.objects.get()
    if by_action:
        act(admin_client, "route", "delete_selected", route.pk, confirmed="yes", typed="topic:a queue:b")
    else:
        admin_client.post(address("route", "delete", route.pk), {"confirmed": "yes", "typed": "topic:a queue:b"})
    assert not Route.objects.exists()
    assert recorded() == [(event, "route:topic:a→queue:b", "admin", "") for event in ("add", "delete")]


def test_operations_on_periodic_jobs_are_recorded(admin_client: Client) -> None:
    make_queue("reports")
    job = add_periodic("nightly", "0 3 * * *", "reports")
    for action in ("run_now", "disable", "enable"):
        act(admin_client, "periodicjob", action, job.pk)
    submit(admin_client, address("periodicjob", "change", job.pk), cron="30 4 * * *")
    act(admin_client, "periodicjob", "delete_selected", job.pk, confirmed="yes", typed="nightly")
    assert not PeriodicJob.objects.exists()
    id = "periodic:nightly"
    assert recorded() == [
        ("run", id, "admin", f"message {Message.objects.get().pk}"),
        ("disable", id, "admin", ""),
        ("enable", id, "admin", ""),
        ("change", id, "admin", "Schedule"),
        ("delete", id, "admin", ""),
    ]


def test_subscriptions_and_peers_are_recorded_too(admin_client: Client) -> None:
    one, bob = subscription(), make_peer("bob", make_node())
    recorded()
    act(admin_client, "subscription", "delete_selected", one.pk, confirmed="yes", typed=str(one))
    act(admin_client, "mailbox", "disconnect", bob.pk, confirmed="yes")
    act(admin_client, "mailbox", "delete_selected", bob.pk, confirmed="yes", typed="bob")
    assert not Subscription.objects.exists()
    deleted, disconnected, gone = recorded()
    assert deleted == ("delete", f"subscription:{one.pk}", "admin", "0 messages")
    assert disconnected == ("disconnect", "peer:bob", "admin", "")
    assert gone[:3] == ("delete", "peer:bob", "admin")


def test_users_and_groups_are_recorded_without_passwords(admin_client: Client) -> None:
    password = "correct horse battery"
    admin_client.post(
        reverse("admin:auth_user_add"),
        {"username": "mallory", "password1": password, "password2": password, "usable_password": "true"},
    )
    user = User.objects.get(username="mallory")
    admin_client.post(
        reverse("admin:auth_user_password_change", args=[user.pk]),
        {"password1": password + "!", "password2": password + "!", "usable_password": "true"},
    )
    admin_client.post(reverse("admin:auth_group_add"), {"name": "night shift"})
    user.refresh_from_db()
    assert user.check_password(password + "!")
    assert Group.objects.exists()
    assert recorded() == [
        ("add", "user:mallory", "admin", ""),
        ("change", "user:mallory", "admin", "password"),
        ("add", "group:night shift", "admin", ""),
    ]


def test_a_refused_permission_leaves_no_row(unprivileged: Client) -> None:
    user = User.objects.get()
    views = Permission.objects.filter(codename__in=["view_queue", "view_message", "view_apikey", "view_route"])
    user.user_permissions.set(views)
    queue, (key, _) = make_queue(audited=True), keys.create_key("billing")
    dead = store(queue, State.DEAD)[0]
    route = Route.objects.create(source="topic:a", target="queue:b")
    recorded("queue:orders")
    for model, action, pk in (
        ("queue", "pause", queue.pk), ("queue", "purge", queue.pk), ("queue", "delete_selected", queue.pk),
        ("message", "put_back", dead.pk), ("message", "remove", dead.pk), ("apikey", "revoke", key.pk),
        ("route", "delete_selected", route.pk),
    ):  # fmt: skip
        act(unprivileged, model, action, pk, confirmed="yes", typed="orders")
    assert unprivileged.post(address("queue", "add"), policy()).status_code == 403
    assert unprivileged.post(address("queue", "change", queue.pk), policy(paused="on")).status_code == 403
    typed = {"confirmed": "yes", "typed": "orders"}
    assert unprivileged.post(address("queue", "delete", queue.pk), typed).status_code == 403
    assert recorded() == recorded("queue:orders") == []
    assert Queue.objects.filter(paused=False).count() == 1


@pytest.mark.parametrize(("action", "operation"), [("delete_selected", "delete_queue"), ("purge", "purge")])
def test_failed_operations_are_recorded_as_failed(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch, action: str, operation: str
) -> None:
    queue = make_queue()

    def busy(*arguments: Any, **more: Any) -> int:
        raise queue_operations.QueueBusy("A transaction is still open.")

    monkeypatch.setattr(message_operations if operation == "purge" else queue_operations, operation, busy)
    act(admin_client, "queue", action, queue.pk, confirmed="yes", typed="orders")
    event = action.partition("_")[0]
    begun, failed = recorded()
    assert begun[:3] == (event, "queue:orders", "admin")
    assert failed == ("failed", "queue:orders", "admin", f"{event}: A transaction is still open.")


# In the transaction of what was done.


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "do",
    [
        lambda client, queue: act(client, "queue", "pause", queue.pk),
        lambda client, queue: client.post(address("queue", "change", queue.pk), policy(paused="on")),
        lambda client, queue: client.post(
            address("queue", "delete", queue.pk), {"confirmed": "yes", "typed": "orders"}
        ),
        lambda client, queue: act(
            client, "route", "delete_selected", Route.objects.get().pk, confirmed="yes", typed="topic:a queue:b"
        ),
    ],
    ids=["action", "change", "deletion", "deletion of several"],
)
def test_an_operation_that_cannot_be_recorded_is_not_done(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch, do: Callable[[Client, Queue], object]
) -> None:
    queue = make_queue()
    Route.objects.create(source="topic:a", target="queue:b")

    def fail(*arguments: Any) -> None:
        raise RuntimeError("the chain is full")

    monkeypatch.setattr(audit_log, "journal", fail)
    with pytest.raises(RuntimeError, match="the chain is full"):
        do(admin_client, queue)
    assert Queue.objects.get().paused is False
    assert Route.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_the_rows_are_a_chain_that_can_be_verified(admin_client: Client) -> None:
    queue = make_queue()
    act(admin_client, "queue", "pause", queue.pk)
    seal()
    act(admin_client, "queue", "resume", queue.pk)
    seal()
    rows = AuditRow.objects.filter(chain__name=OPERATORS).order_by("seq")
    assert list(rows.values_list("seq", "event", "record_id", "sender")) == [
        (0, "pause", "queue:orders", "admin"),
        (1, "resume", "queue:orders", "admin"),
    ]
    assert verify(OPERATORS, ()).ok


# Audited queues in the admin.


def test_switching_the_audit_of_a_queue_on_and_off_says_who(admin_client: Client) -> None:
    queue = make_queue()
    change = address("queue", "change", queue.pk)
    submit(admin_client, change, audited="on")
    queue.refresh_from_db()
    assert queue.audited
    submit(admin_client, change, max_attempts="9")
    submit(admin_client, change, audited=None)
    assert recorded("queue:orders") == [
        ("audit-on", "queue:orders", "admin", ""),
        ("audit-off", "queue:orders", "admin", ""),
    ]
    assert [row[3] for row in recorded()] == ["Audited", "Max attempts", "Audited"]
    assert admin_client.post(address("queue", "add"), policy(name="new", audited="on")).status_code == 302
    assert recorded("queue:new") == [("audit-on", "queue:new", "admin", "")]
    pk = Queue.objects.get(name="new").pk
    admin_client.post(address("queue", "delete", pk), {"confirmed": "yes", "typed": "new"})
    assert recorded("queue:new") == [("delete", "queue:new", "admin", "")]


def test_the_queue_of_a_peer_is_not_audited_twice(admin_client: Client) -> None:
    bob = make_peer("bob")
    page = address("queue", "change", bob.queue_id)
    assert 'name="audited"' not in admin_client.get(page).content.decode()
    assert admin_client.post(page, policy(audited="on")).status_code == 302
    queue = Queue.objects.get(pk=bob.queue_id)
    assert (queue.kind, queue.audited) == (QueueKind.MAILBOX, False)
    queue.audited = True
    with pytest.raises(ValidationError, match="recorded in the chain peerbus"):
        queue.full_clean()


def test_audited_queues_can_be_found_in_the_list(admin_client: Client) -> None:
    make_queue(audited=True), make_queue("other")
    response = admin_client.get(address("queue"), {"audited__exact": "1"})
    assert [row.name for row in response.context["cl"].result_list] == ["orders"]
    assert "other" not in text_of(response)


# In the shell.


def test_queues_in_the_shell(shell: Shell) -> None:
    assert shell("queue", "create", "orders", "--audited").status == 0
    assert shell("queue", "show", "orders", "--json").json["audited"] is True
    assert "audited" in shell("queue", "show", "orders").out
    shell("queue", "create", "other")
    assert shell("queue", "show", "other", "--json").json["audited"] is False
    assert recorded("queue:orders") == [("audit-on", "queue:orders", SHELL, "")]
    assert recorded("queue:other") == []
    id = int(shell("queue", "publish", "orders", "hello").out)
    for word in ("pause", "resume"):
        shell("queue", word, "orders")
    shell("queue", "move", "orders", "other", "--yes")
    shell("queue", "purge", "other", "--yes")
    shell("queue", "delete", "orders", "--yes")
    assert recorded() == [
        ("add", "queue:orders", SHELL, ""),
        ("add", "queue:other", SHELL, ""),
        ("publish", f"message:{id}", SHELL, "orders"),
        ("pause", "queue:orders", SHELL, ""),
        ("resume", "queue:orders", SHELL, ""),
        ("move", "queue:orders", SHELL, "1 to queue:other"),
        ("purge", "queue:other", SHELL, "0 delayed and 1 ready"),
        ("delete", "queue:orders", SHELL, "0 messages"),
    ]
    assert recorded("queue:orders") == [
        ("publish", str(id), "", "orders"),
        ("move", str(id), SHELL, "other"),
        ("delete", "queue:orders", SHELL, ""),
    ]


def test_a_refusal_in_the_shell_leaves_no_row_or_one_that_says_it_failed(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_queue()
    assert shell("queue", "create", "orders").status == 1
    assert shell("queue", "pause", "nowhere").status == 1
    assert shell("queue", "purge", "nowhere", "--yes").status == 1
    assert shell("queue", "purge", "orders").status == 2  # there is no terminal to ask on
    assert shell("route", "add", "a", "a").status == 1
    assert shell("route", "remove", "a", "b").status == 1
    assert shell("apikey", "revoke", "absent").status == 1
    assert recorded() == []

    def busy(*arguments: Any, **more: Any) -> int:
        raise queue_operations.QueueBusy("A transaction is still open.")

    monkeypatch.setattr(message_operations, "purge", busy)
    assert shell("queue", "purge", "orders", "--yes").status == 1
    assert recorded()[1] == ("failed", "queue:orders", SHELL, "purge: A transaction is still open.")


def test_keys_and_routes_in_the_shell(shell: Shell) -> None:
    key = shell("apikey", "create", "billing", "--key", "the-very-secret-value").out.strip()
    shell("apikey", "revoke", "billing")
    shell("route", "add", "a", "topic:b")
    shell("route", "remove", "queue:a", "topic:b")
    found = recorded()
    assert found == [
        ("add", "key:billing", SHELL, ""),
        ("revoke", "key:billing", SHELL, ""),
        ("add", "route:queue:a→topic:b", SHELL, ""),
        ("delete", "route:queue:a→topic:b", SHELL, ""),
    ]
    assert key[:4] not in str(found)


# The helper.


def test_a_long_name_is_cut_so_that_it_can_be_recorded() -> None:
    with transaction.atomic():
        audit_log.record("alice", "add", "route:" + "ü" * MAX_ID, "x" * 5000)
    [(_, id, _, detail)] = recorded()
    assert len(id.encode()) <= MAX_ID
    assert id.startswith("route:üüü")
    assert len(detail) == audit_log.MAX_DETAIL
    append(OPERATORS, [AuditEvent("add", id, "alice", detail)])
    assert event_bytes(AuditEvent("add", id, "alice", detail))


def test_a_user_without_a_name_is_known_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)
    assert audit_log.shell_operator() == "shell:4000000000"


@pytest.mark.django_db(transaction=True)
def test_naming_the_operator_needs_a_transaction() -> None:
    with pytest.raises(transaction.TransactionManagementError):
        audit_log.declare("alice")
    with transaction.atomic():
        audit_log.declare("alice")
        Queue.objects.create(name="mine", audited=True)
    Queue.objects.filter(name="mine").update(audited=False)
    on, off = recorded("queue:mine")
    assert on[2] == "alice"
    assert off[2].startswith("database:")
