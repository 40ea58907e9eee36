"""The operators' pages."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django.fixtures import DjangoAssertNumQueries

from queues.admin import payload
from queues.admin.filters import MAX_OFFERED
from queues.models import ApiKey, ApiKeyUse, ArchivedMessage, Message, Queue, Route, State, Subscription
from queues.operations import keys
from queues.operations import queues as queue_operations
from queues.operations.routes import add_route
from tests.queues.store import assert_counts_are_exact, make_node, make_queue, store

pytestmark = pytest.mark.django_db

#: Session and user, which every page asks for.
LOGIN = 2


def address(model: str, page: str = "changelist", *arguments: object) -> str:
    return reverse(f"admin:queues_{model}_{page}", args=arguments)


def text_of(response: Any) -> str:
    return unescape(re.sub(r"<[^>]+>", " ", response.content.decode()))


def act(client: Client, model: str, action: str, *pks: object, **more: str) -> Any:
    data = {"action": action, "_selected_action": [str(pk) for pk in pks], **more}
    return client.post(address(model), data, follow=True)


def confirm(client: Client, preview: Any, **answers: str) -> Any:
    """The answer to the question of a preview's page."""
    request = preview.wsgi_request
    return client.post(request.get_full_path(), {"confirmed": "yes", **answers}, follow=True)


@pytest.fixture
def unprivileged(client: Client) -> Client:
    """A user who may log in and nothing more."""
    client.force_login(User.objects.create_user("staff", is_staff=True))
    return client


def test_the_site_is_called_fivewire(admin_client: Client) -> None:
    response = admin_client.get(reverse("admin:index"))
    assert "Fivewire" in text_of(response)


# Every list, in a number of queries that does not grow.


def subscription(topic: str = "prices") -> Subscription:
    queue = make_queue(f"_subscription/{topic}", kind="subscription")
    owner, _ = keys.create_key(f"owner of {topic}")
    return Subscription.objects.create(topic=topic.encode(), qos=1, queue=queue, owner=owner)


def archive(queue: Queue, count: int = 1, **fields: Any) -> None:
    """Finished messages, with ids from 1 up."""
    now = timezone.now()
    ArchivedMessage.objects.bulk_create(
        ArchivedMessage(
            **{
                "id": n + 1, "queue": queue, "outcome": 0, "attempts": 0, "published_at": now, "finished_at": now,
                "size": 3, **fields,
            }
        )
        for n in range(count)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("model", "queries"),
    [
        ("queue", 6),  # how many queues there are, the page, counts, first messages, the last hour, workers
        ("message", 2),  # the page, the queues to choose from
        ("subscription", 3),
        ("apikey", 2),
        ("route", 3),
        ("node", 2),
        ("archivedmessage", 4),
    ],
)
@pytest.mark.parametrize("rows", [1, 4])
def test_a_list_takes_as_many_queries_for_many_rows_as_for_one(
    admin_client: Client, django_assert_num_queries: DjangoAssertNumQueries, model: str, queries: int, rows: int
) -> None:
    for n in range(rows):
        queue = make_queue(f"queue {n}")
        store(queue)
        archive(queue)
        make_node(), keys.create_key(f"key {n}"), subscription(f"topic {n}")
        Route.objects.create(source=f"queue:{n}", target="topic:t")
    with django_assert_num_queries(LOGIN + queries):
        response = admin_client.get(address(model))
    assert response.status_code == 200
    assert len(response.context["cl"].result_list) >= rows


@pytest.mark.parametrize("model", ["queue", "message", "subscription", "apikey", "route", "node", "archivedmessage"])
def test_lists_need_view_permission(unprivileged: Client, model: str) -> None:
    assert unprivileged.get(address(model)).status_code == 403


@pytest.mark.parametrize("model", ["message", "subscription", "node", "archivedmessage"])
def test_rows_of_the_engine_cannot_be_added_or_changed(admin_client: Client, model: str) -> None:
    queue = make_queue()
    archive(queue)
    pks = {
        "message": store(queue)[0].pk, "subscription": subscription().pk, "node": make_node().pk, "archivedmessage": 1,
    }  # fmt: skip
    pk = pks[model]
    assert admin_client.get(address(model, "add")).status_code == 403
    assert admin_client.post(address(model, "change", pk), {"qos": 0}).status_code == 403
    assert admin_client.get(address(model, "change", pk)).status_code == 200


# Queues.


def policy(**changes: str) -> dict[str, str]:
    return {
        "name": "orders", "max_attempts": "5", "retry_backoff": "1", "retry_backoff_cap": "60", "ack_timeout": "30",
        "overflow": "reject", "retention": "metadata", **changes,
    }  # fmt: skip


def test_a_queue_is_made_and_its_policy_changed(admin_client: Client) -> None:
    assert admin_client.post(address("queue", "add"), policy()).status_code == 302
    queue = Queue.objects.get()
    assert queue.ack_timeout == timedelta(seconds=30)
    changed = policy(name="other", message_ttl="90", max_length="7", paused="on")
    assert admin_client.post(address("queue", "change", queue.pk), changed).status_code == 302
    queue.refresh_from_db()
    assert (queue.name, queue.max_length, queue.paused) == ("orders", 7, True)
    assert queue.message_ttl == timedelta(seconds=90)
    assert_counts_are_exact(queue)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"name": "_mine"}, "the system's"),
        ({"message_ttl": "0"}, "more than 0"),
        ({"retry_backoff": "-1"}, "0 or more"),
        ({"max_length": "0"}, "queue_length_positive"),
    ],
)
def test_a_policy_that_cannot_be_is_refused_on_the_form(
    admin_client: Client, changes: dict[str, str], reason: str
) -> None:
    response = admin_client.post(address("queue", "add"), policy(**changes))
    assert response.status_code == 200
    assert reason in text_of(response)
    assert not Queue.objects.exists()


def test_the_list_shows_the_counts_and_finds_a_queue_by_name(admin_client: Client) -> None:
    queue, _ = make_queue(), make_queue("other")
    store(queue, State.DEAD, 12_345)
    response = admin_client.get(address("queue"), {"q": "orders"})
    [row] = response.context["cl"].result_list
    assert (row.name, row.counts.dead) == ("orders", 12_345)
    assert f"?queue={queue.pk}&amp;state=3" in response.content.decode()


def test_pause_and_resume_are_a_click(admin_client: Client) -> None:
    queue = make_queue()
    assert "Paused orders" in text_of(act(admin_client, "queue", "pause", queue.pk))
    assert Queue.objects.get().paused is True
    assert "Resumed orders" in text_of(act(admin_client, "queue", "resume", queue.pk))
    assert Queue.objects.get().paused is False


def test_a_purge_asks_first_and_shows_what_it_would_take(admin_client: Client) -> None:
    queue = make_queue()
    store(queue, count=3), store(queue, State.DEAD)
    asked = act(admin_client, "queue", "purge", queue.pk)
    assert "orders: 3 ready, 0 delayed" in text_of(asked)
    assert assert_counts_are_exact(queue).ready == 3
    mistyped = act(admin_client, "queue", "purge", queue.pk, confirmed="yes", typed="order")
    assert "That is something else." in text_of(mistyped)
    assert assert_counts_are_exact(queue).ready == 3
    done = act(admin_client, "queue", "purge", queue.pk, confirmed="yes", typed="orders")
    assert "Removed 3 messages from orders" in text_of(done)
    counts = assert_counts_are_exact(queue)
    assert (counts.ready, counts.dead) == (0, 1)


@pytest.mark.parametrize("by_action", [True, False])
def test_deleting_a_queue_asks_first_and_takes_its_messages(admin_client: Client, by_action: bool) -> None:
    queue = make_queue()
    store(queue, count=2)

    def delete(**more: str) -> Any:
        if by_action:
            return act(admin_client, "queue", "delete_selected", queue.pk, **more)
        return admin_client.post(address("queue", "delete", queue.pk), more, follow=True)

    assert "orders: 2 ready, 0 unacknowledged, 0 delayed, 0 dead" in text_of(delete())
    assert Queue.objects.exists()
    assert "That is something else." in text_of(delete(confirmed="yes"))
    assert Queue.objects.exists()
    assert "Deleted orders with 2 messages" in text_of(delete(confirmed="yes", typed="orders"))
    assert not Queue.objects.exists()
    assert not Message.objects.exists()


def test_a_queue_that_is_busy_stays_and_the_page_says_why(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = make_queue()

    def busy(*arguments: Any, **more: Any) -> int:
        raise queue_operations.QueueBusy("A transaction is still open.")

    monkeypatch.setattr(queue_operations, "delete_queue", busy)
    response = act(admin_client, "queue", "delete_selected", queue.pk, confirmed="yes", typed="orders")
    assert "A transaction is still open." in text_of(response)


def test_a_user_who_is_refused_a_page_is_told_why(unprivileged: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Your account lacks the permission" in text_of(unprivileged.get(address("queue")))
    assert "could not be found" in text_of(unprivileged.get("/admin/nothing/"))
    route = add_route("topic:a", "queue:" + make_queue().name)
    permissions = Permission.objects.filter(codename__in=["view_route", "delete_route"])
    User.objects.get().user_permissions.set(permissions)
    of_route = admin.site.get_model_admin(Route)
    monkeypatch.setattr(of_route, "get_deleted_objects", lambda *_: ([], {}, {"log entries"}, []))
    refused = unprivileged.get(address("route", "delete", route.pk))
    assert refused.status_code == 403
    assert "This would also delete what you may not delete: log entries." in text_of(refused)


def test_a_user_with_view_permission_only_is_offered_no_action(unprivileged: Client) -> None:
    user = User.objects.get()
    user.user_permissions.set(Permission.objects.filter(codename__in=["view_queue", "view_message"]))
    queue = make_queue()
    store(queue, State.DEAD)
    actions = [("queue", "pause"), ("queue", "purge"), ("queue", "delete_selected"), ("message", "put_back")]
    for model, action in actions:
        assert f'value="{action}"' not in unprivileged.get(address(model)).content.decode()
        pk = queue.pk if model == "queue" else Message.objects.get().pk
        act(unprivileged, model, action, pk, confirmed="yes", typed="orders")
    typed = {"confirmed": "yes", "typed": "orders"}
    assert unprivileged.post(address("queue", "delete", queue.pk), typed).status_code == 403
    queue.refresh_from_db()
    assert queue.paused is False
    assert assert_counts_are_exact(queue).dead == 1


# Messages.


def numbers(response: Any) -> list[int]:
    return [message.pk for message in response.context["cl"].result_list]


def test_pages_of_messages_follow_one_another_without_a_count(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queues.admin.message.MessageAdmin.list_per_page", 2)
    ids = [message.pk for message in store(make_queue(), count=5)]
    response, seen = admin_client.get(address("message"), {"state": "0"}), []
    for _ in range(3):
        seen += numbers(response)
        if response.context["cl"].next_page:
            response = admin_client.get(address("message") + response.context["cl"].next_page)
    assert seen == ids
    assert "First page" in text_of(response)
    assert "Next page" not in text_of(response)
    first = admin_client.get(address("message") + response.context["cl"].first_page)
    assert numbers(first) == ids[:2]


def test_no_list_of_messages_counts_a_table(admin_client: Client, django_assert_num_queries: Any) -> None:
    store(make_queue())
    with django_assert_num_queries(LOGIN + 2) as queries:
        admin_client.get(address("message"))
    assert not [query["sql"] for query in queries.captured_queries if "COUNT(" in query["sql"].upper()]


def test_messages_are_filtered_by_queue_and_state(admin_client: Client) -> None:
    queue, other = make_queue(), make_queue("other")
    ready, dead = store(queue)[0].pk, store(queue, State.DEAD)[0].pk
    elsewhere = store(other)[0].pk
    queries: list[tuple[dict[str, Any], list[int]]] = [
        ({}, [ready, dead, elsewhere]),
        ({"queue": queue.pk}, [ready]),
        ({"queue": queue.pk, "state": 3}, [dead]),
        ({"state": 0}, [ready, elsewhere]),
        ({"queue": "x"}, []),
    ]
    for query, found in queries:
        assert numbers(admin_client.get(address("message"), query)) == found


def test_a_wrong_address_leads_to_the_first_page(admin_client: Client) -> None:
    for query in ({"after": "x"}, {"after": "1,2"}, {"nonsense": "1"}):
        response = admin_client.get(address("message"), query)
        assert response.status_code == 302
        assert response.headers["Location"].endswith("?e=1")


def test_with_many_queues_only_the_chosen_one_is_offered(admin_client: Client) -> None:
    queues = Queue.objects.bulk_create(Queue(name=f"queue-{n}") for n in range(MAX_OFFERED + 1))
    assert "queue-3" not in text_of(admin_client.get(address("message")))
    response = admin_client.get(address("message"), {"queue": queues[3].pk})
    assert "queue-3 " in text_of(response)
    assert "queue-4" not in text_of(response)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"b": [1], "a": "\xc3\xa9"}', '"a": "\\u00e9"'),
        ("höhe\n<script>".encode(), "höhe\n<script>"),
        (b"\x00\xff<b>", "00000000  00 ff 3c 62 3e"),
        ("a\u202eb".encode(), "a\\u202eb"),
        (b"", "text, 0 bytes"),
    ],
)
def test_a_payload_is_shown_as_json_text_or_bytes_and_never_as_markup(
    admin_client: Client, body: bytes, expected: str
) -> None:
    message = store(make_queue(), payload=body, headers={"<i>": "<script>"})[0]
    for page in (address("message", "change", message.pk), address("message")):
        response = admin_client.get(page)
        assert response.status_code == 200
        assert b"<script>" not in response.content.replace(b"<script src", b"")
    shown = text_of(admin_client.get(address("message", "change", message.pk)))
    assert expected in shown


def test_of_a_large_payload_the_beginning_is_shown_and_all_can_be_downloaded(admin_client: Client) -> None:
    body = "é".encode() * 40_000
    message = store(make_queue(), payload=b"x" + body)[0]
    shown = text_of(admin_client.get(address("message", "change", message.pk)))
    assert "the first 65,536 of 80,001 bytes" in shown
    download = admin_client.get(address("message", "payload", message.pk))
    assert download.content == b"x" + body
    assert download.headers["Content-Type"] == "application/octet-stream"
    assert download.headers["Content-Disposition"].startswith("attachment")
    assert admin_client.get(address("message", "payload", 1)).status_code == 404


def test_a_payload_needs_permission_to_view_messages(unprivileged: Client) -> None:
    message = store(make_queue())[0]
    assert unprivileged.get(address("message", "payload", message.pk)).status_code == 403


def test_a_list_does_not_load_payloads(admin_client: Client) -> None:
    store(make_queue(), payload=b"x" * 100_000)
    response = admin_client.get(address("message"))
    [message] = response.context["cl"].result_list
    assert "payload" in message.get_deferred_fields()
    assert "100000" in text_of(response)


def test_dead_letters_are_put_back_after_a_preview_and_others_left(admin_client: Client) -> None:
    queue = make_queue()
    dead, ready = store(queue, State.DEAD, 2, attempts=3), store(queue)[0]
    asked = act(admin_client, "message", "put_back", *(message.pk for message in dead), ready.pk)
    assert "3 selected: 3 messages" in " ".join(text_of(asked).split())
    assert assert_counts_are_exact(queue).ready == 1
    assert "2 done, 1 left alone." in text_of(confirm(admin_client, asked))
    assert assert_counts_are_exact(queue).ready == 3
    assert Message.objects.get(pk=ready.pk).origin_id is None


def test_a_full_queue_says_that_it_takes_none_back(admin_client: Client) -> None:
    queue = make_queue(max_length=1)
    store(queue)
    dead = store(queue, State.DEAD)[0]
    done = confirm(admin_client, act(admin_client, "message", "put_back", dead.pk))
    assert "The queue is full" in text_of(done)


# The archive.


def test_the_archive_shows_the_last_hour_the_newest_first(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queues.admin.archive.ArchivedMessageAdmin.list_per_page", 2)
    queue = make_queue()
    archive(queue, 3)
    archive(queue, 1, id=99, finished_at=timezone.now() - timedelta(hours=2))
    response = admin_client.get(address("archivedmessage"))
    assert numbers(response) == [3, 2]
    rest = admin_client.get(address("archivedmessage") + response.context["cl"].next_page)
    assert numbers(rest) == [1]
    assert rest.context["cl"].next_page == ""
    monkeypatch.setattr("queues.admin.archive.ArchivedMessageAdmin.list_per_page", 9)
    assert numbers(admin_client.get(address("archivedmessage"), {"within": "all"})) == [3, 2, 1, 99]
    assert numbers(admin_client.get(address("archivedmessage"), {"within": "24", "queue": str(queue.pk)}))[-1] == 99
    assert numbers(admin_client.get(address("archivedmessage"), {"queue": queue.pk + 1})) == []


def test_a_finished_message_outlives_its_queue(admin_client: Client) -> None:
    queue = make_queue()
    archive(queue, payload=b"kept")
    queue_operations.delete_queue("orders")
    assert f"deleted ({queue.pk})" in text_of(admin_client.get(address("archivedmessage")))
    shown = text_of(admin_client.get(address("archivedmessage", "change", 1)))
    assert "kept" in shown
    assert f"deleted ({queue.pk})" in shown


# Subscriptions and routes.


def test_a_subscription_shows_its_backlog_and_is_deleted_with_it(admin_client: Client) -> None:
    one, other = subscription("prices"), subscription("other")
    store(one.queue, count=2)
    found = admin_client.get(address("subscription"), {"q": "prices"})
    assert [row.counts.ready for row in found.context["cl"].result_list] == [2]
    asked = admin_client.post(address("subscription", "delete", one.pk))
    assert "2 messages" in text_of(asked)
    admin_client.post(address("subscription", "delete", one.pk), {"confirmed": "yes", "typed": str(one)})
    assert list(Subscription.objects.all()) == [other]
    assert not Queue.objects.filter(pk=one.queue_id).exists()


def test_a_route_is_added_and_removed(admin_client: Client) -> None:
    response = admin_client.post(address("route", "add"), {"source": "orders", "target": "topic:t"}, follow=True)
    assert "There is no queue orders yet" in text_of(response)
    route = Route.objects.get()
    assert (route.source, route.target) == ("queue:orders", "topic:t")
    admin_client.post(address("route", "delete", route.pk), {"confirmed": "yes", "typed": "queue:orders topic:t"})
    assert not Route.objects.exists()


@pytest.mark.parametrize("by_action", [True, False])
def test_what_holds_no_messages_is_deleted_after_its_name_or_the_number_was_typed_too(
    admin_client: Client, by_action: bool
) -> None:
    first, second = (add_route("orders", f"topic:{name}") for name in "st")

    def delete(typed: dict[str, str], *chosen: Route) -> str:
        if by_action:
            keys = {"action": "delete_selected", "_selected_action": [route.pk for route in chosen]}
            return text_of(admin_client.post(address("route"), {**keys, "confirmed": "yes", **typed}))
        return text_of(admin_client.post(address("route", "delete", chosen[0].pk), {"confirmed": "yes", **typed}))

    for typed in ({}, {"typed": "topic:s"}, {"typed": ""}, {"typed": "1 route"}):
        shown = delete(typed, first)
        assert "That is something else." in shown
        assert "To go on, type queue:orders topic:s" in " ".join(shown.split())
    assert Route.objects.count() == 2
    if by_action:
        delete({"typed": "queue:orders topic:s"}, first, second)
        assert Route.objects.count() == 2
        delete({"typed": "2 routes"}, first, second)
        assert not Route.objects.exists()
    else:
        delete({"typed": "queue:orders topic:s"}, first)
        assert Route.objects.get() == second


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("queue:a", "loop: queue:b → queue:a → queue:b"),
        ("b", "itself"),
        (f"peer:{'x' * 241}", "240 characters at most"),
    ],
)
def test_a_route_that_cannot_be_is_refused_on_the_form(admin_client: Client, target: str, reason: str) -> None:
    admin_client.post(address("route", "add"), {"source": "queue:a", "target": "queue:b"})
    response = admin_client.post(address("route", "add"), {"source": "queue:b", "target": target})
    assert response.status_code == 200
    assert reason in text_of(response)
    assert Route.objects.count() == 1


# Keys.


def test_a_key_is_shown_once(admin_client: Client) -> None:
    data = {"name": "app", "protocols": ["sspq"], "publish": "a*,b", "consume": "", "manage": ""}
    response = admin_client.post(address("apikey", "add"), data)
    assert response.status_code == 200
    assert "no-store" in response["Cache-Control"]
    found = re.search(r'<code id="new-key">(\S+)</code>', response.content.decode())
    assert found is not None
    assert not any(found[1] in cookie.value for cookie in (*response.cookies.values(), *admin_client.cookies.values()))
    assert "characters" not in text_of(response)
    key = ApiKey.objects.get()
    assert key.digest == keys.digest(found[1])
    assert (key.protocols, key.publish, key.consume) == (["sspq"], ["a*", "b"], [])
    for page in (address("apikey"), address("apikey", "change", key.pk)):
        shown = admin_client.get(page).content.decode()
        assert found[1] not in shown
        assert key.digest not in shown


def test_a_key_may_be_given_and_must_be_new(admin_client: Client) -> None:
    keys.create_key("app", key="dev-key")
    data = {"name": "other", "protocols": keys.PROTOCOLS, "publish": "*", "consume": "*", "value": "dev-key"}
    response = admin_client.post(address("apikey", "add"), data)
    assert "There is an API key with this value" in text_of(response)
    made = admin_client.post(address("apikey", "add"), data | {"value": " second "})
    assert "The key has 8 characters: fewer than 16 can be guessed." in text_of(made)
    assert ApiKey.objects.get(name="other").digest == keys.digest(" second ")


def test_a_key_is_rotated_and_its_new_value_shown_once(admin_client: Client, unprivileged: Client) -> None:
    row, before = keys.create_key("app")
    ApiKeyUse.objects.create(key=row, at=timezone.now(), protocol="blipmq", address="192.0.2.7")
    page = address("apikey", "change", row.pk)
    rotate = address("apikey", "rotate", row.pk)
    assert unprivileged.get(rotate).status_code == 403
    admin_client.force_login(User.objects.get(username="admin"))
    assert rotate in admin_client.get(page).content.decode()
    assert "blipmq from 192.0.2.7" in text_of(admin_client.get(address("apikey")))
    assert "greater than or equal to 0" in text_of(admin_client.post(rotate, {"hours": "-1"}))
    made = admin_client.post(rotate, {"hours": "2"})
    found = re.search(r'<code id="new-key">(\S+)</code>', made.content.decode())
    assert found is not None
    row.refresh_from_db()
    assert (row.digest, row.old_digest) == (keys.digest(found[1]), keys.digest(before))
    assert found[1] not in admin_client.get(page).content.decode()
    keys.revoke_key("app")
    assert "is revoked" in text_of(admin_client.post(rotate, {"hours": "2"}))


def test_a_new_key_may_do_nothing_until_it_is_chosen(admin_client: Client) -> None:
    page = address("apikey", "add")
    form = admin_client.get(page).context["adminform"].form
    assert [form[name].value() or [] for name in keys.SCOPES] == [[], [], [], []]
    assert "Choose the protocols" in text_of(admin_client.post(page, {"name": "app", "publish": "price"}))
    admin_client.post(page, {"name": "app", "protocols": "blipmq", "publish": "price"})
    assert ApiKey.objects.values_list(*keys.SCOPES).get() == (["blipmq"], ["price"], [], [])


def test_a_key_for_any_protocol_has_all_of_them_ticked_and_none_is_not_all(admin_client: Client) -> None:
    row, _ = keys.create_key("app")
    page = address("apikey", "change", row.pk)
    assert admin_client.get(page).context["adminform"].form["protocols"].value() == list(keys.PROTOCOLS)
    for chosen, stored in (((), []), (("sspq",), ["sspq"]), (keys.PROTOCOLS, [])):
        admin_client.post(page, {"protocols": chosen, "publish": "a"})
        row.refresh_from_db()
        assert row.protocols == stored


def test_scopes_change_until_a_key_is_revoked_and_nothing_deletes_it(admin_client: Client) -> None:
    row, _ = keys.create_key("app", key="dev-key")
    change = address("apikey", "change", row.pk)
    scopes = {"protocols": "sspq", "publish": "b", "consume": "", "manage": "c"}
    admin_client.post(change, {"name": "x", **scopes, "value": "new"})
    row.refresh_from_db()
    assert (row.name, row.publish, row.consume, row.manage) == ("app", ["b"], [], ["c"])
    assert row.digest == keys.digest("dev-key")
    asked = act(admin_client, "apikey", "revoke", row.pk)
    assert "app: live connections 0, subscriptions 0, last log-in -" in text_of(asked)
    assert ApiKey.objects.get(pk=row.pk).revoked_at is None
    assert "Revoked app" in text_of(act(admin_client, "apikey", "revoke", row.pk, confirmed="yes"))
    admin_client.post(change, {"protocols": "sspq", "publish": "*", "consume": "*", "manage": "*"})
    row.refresh_from_db()
    assert row.revoked_at is not None
    assert row.publish == ["b"]
    assert admin_client.post(address("apikey", "delete", row.pk), {"confirmed": "yes"}).status_code == 403


def test_a_key_that_is_revoked_while_its_scopes_are_changed_stays_revoked(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, _ = keys.create_key("app", key="dev-key")
    save = ApiKey.save

    def save_a_moment_later(self: ApiKey, **options: Any) -> None:
        ApiKey.objects.filter(pk=row.pk).update(revoked_at=timezone.now())
        save(self, **options)

    monkeypatch.setattr(ApiKey, "save", save_a_moment_later)
    admin_client.post(address("apikey", "change", row.pk), {"protocols": "sspq", "publish": "b", "consume": "*"})
    row.refresh_from_db()
    assert row.revoked_at is not None
    assert row.publish == ["b"]


# Payloads.


def test_a_payload_that_only_looks_like_json_is_text() -> None:
    assert payload.shown(b"{nope", 5) == ("text, 5 bytes", "{nope")
    deep = b"[" * 100_000
    assert payload.shown(deep[: payload.MAX_SHOWN], len(deep))[0].startswith("text")


def test_a_character_cut_in_two_is_not_taken_for_bytes() -> None:
    kind, text = payload.shown("é".encode()[:1], 2)
    assert (kind, text) == ("text, the first 1 of 2 bytes", "")
    assert payload.shown(b"\xc3", 1)[0].startswith("hexadecimal")


def test_a_preview_is_one_short_line() -> None:
    assert payload.preview(b"a\nb", 3) == "a b"
    assert payload.preview(b"x" * 61, 1000) == "x" * 60 + "…"
    assert payload.preview(b"\x00\x01", 2) == "00 01"
    assert payload.preview(b"\xff" * 61, 61).endswith("…")


def test_numbers_larger_than_64_bits_in_json_do_not_break_the_page() -> None:
    assert json.loads(payload.shown(b"[" + b"9" * 400 + b"]", 402)[1])
