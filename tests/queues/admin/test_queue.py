"""The list of queues and the page of one: figures, consumers, reasons, and what can be done there."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from html import unescape
from typing import Any

import psycopg
import pytest
from django.contrib.auth.models import Permission, User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection as database
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django.fixtures import DjangoAssertNumQueries

from queues.admin.effects import effects
from queues.database.parameters import connection_parameters
from queues.models import (
    AuditJournalEntry,
    BulkAction,
    Connection,
    Consumer,
    DeadLetterCount,
    DeadLetterTally,
    Interest,
    Node,
    Queue,
    QueueSample,
    Route,
    SampleMark,
    State,
    Worker,
)
from queues.operations.definitions import export_definitions
from queues.operations.queues import POLICY
from queues.store.samples import ALL_QUEUES
from tests.queues.admin.test_admin import act, address, policy, subscription, text_of, unprivileged
from tests.queues.admin.test_front import MAX_QUERIES, sample, user_with
from tests.queues.store import assert_counts_are_exact, make_node, make_queue, store

__all__ = ["unprivileged"]
pytestmark = pytest.mark.django_db


def page(queue: Queue, name: str = "change") -> str:
    return reverse(f"admin:queues_queue_{name}", args=[queue.pk])


def words(response: Any) -> str:
    return " ".join(text_of(response).split())


def make_worker(*queues: str) -> Worker:
    subscriptions = [{"sid": "s", "queue": queue, "credits": 5, "active": 2} for queue in queues]
    return Worker.objects.create(
        wid="12345678-1234-5678-1234-567812345678", node=make_node(), address="10.0.0.7:1234",
        subscriptions=subscriptions, connected_at=timezone.now(), active=2,
    )  # fmt: skip


# The list.


def test_the_list_shows_rates_ages_consumers_and_the_last_hour(
    admin_client: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    queue = make_queue("orders")
    SampleMark.objects.create(
        queue=ALL_QUEUES, at=timezone.now() - timedelta(seconds=50),
        **dict.fromkeys(("ready", "leased", "delayed", "dead", "published", "settled"), 0),
    )  # fmt: skip
    store(queue, count=500, published_at=timezone.now() - timedelta(minutes=5))
    sample(ALL_QUEUES, 1)
    sample(queue.pk, 1, ready=321)
    make_worker("orders")
    Interest.objects.create(queue=queue, node=make_node())
    with django_assert_max_num_queries(MAX_QUERIES):
        response = admin_client.get(address("queue"))
    [row] = response.context["cl"].result_list
    assert row.figures.in_rate == pytest.approx(10, rel=0.3)
    text = words(response)
    assert "5 minutes" in text
    assert "nodes: 1, workers: 1" in text
    assert "Messages that wait in orders, at most 321" in response.content.decode()


def test_a_page_of_a_hundred_queues_takes_no_more_queries_for_a_user_with_few_rights(
    client: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    for n in range(100):
        make_queue(f"queue {n}")
    client.force_login(user_with("view_queue"))
    with django_assert_max_num_queries(MAX_QUERIES):
        assert len(client.get(address("queue")).context["cl"].result_list) == 50


def test_ages_that_are_hard_to_find_are_unknown_and_the_list_is_there(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch, transactional_db: None
) -> None:
    store(make_queue(), count=7)
    monkeypatch.setattr("queues.admin.queue_panel.OLDEST_LIMIT", 200)
    with psycopg.connect(**connection_parameters()) as other:
        other.execute("lock table queues_message")
        assert "unknown" in text_of(admin_client.get(address("queue")))


def test_queues_of_subscriptions_and_peers_are_called_what_people_call_them(admin_client: Client) -> None:
    make_queue("_subscription/20/prices/eu", kind="subscription"), make_queue("_peer/bob", kind="mailbox")
    make_queue("orders")
    page = admin_client.get(address("queue"))
    text = words(page)
    assert "prices/eu, subscription 20" in text
    assert "peer bob" in text
    assert "orders" in text
    assert 'title="_peer/bob"' in page.content.decode()
    assert "Queues | Fivewire" in text


# One queue's page.


def test_the_page_of_a_queue_shows_its_figures_charts_consumers_and_reasons(
    admin_client: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    queue = make_queue("orders", max_attempts=3, retry_backoff=timedelta(seconds=2))
    store(queue, count=12)
    store(queue, State.DEAD, 3, error="card refused"), store(queue, State.DEAD, 2, error="timed out")
    sample(queue.pk, 1, ready=77, published=600)
    sample(ALL_QUEUES, 1, published=600)
    worker = make_worker("orders", "other")
    Interest.objects.create(queue=queue, node=make_node())
    with django_assert_max_num_queries(MAX_QUERIES):
        response = admin_client.get(page(queue))
    text = words(response)
    assert "Ready 12 0 delayed" in text
    assert text.index("card refused 3") < text.index("timed out 2")
    assert "ready is highest at" in response.content.decode()
    assert re.search(r"[\d-]+ [\d:]+ 77 0 0 0 ", text), "the table beside the chart"
    assert "worker 12345678-1234-5678-1234-567812345678 10.0.0.7:1234" in text
    assert f"node {worker.node_id}" in text
    assert text.index("10.0.0.7") < text.index("here, pid 1")
    assert "After 3 deliveries without success a message becomes a dead letter here." in text
    assert "It waits 2 s, 4 s between deliveries." in text


def test_the_page_of_a_queue_is_within_the_limit_for_a_user_with_few_rights(
    client: Client, django_assert_max_num_queries: DjangoAssertNumQueries, transactional_db: None
) -> None:
    queue = make_queue()
    client.force_login(user_with("view_queue", "change_queue"))
    with django_assert_max_num_queries(MAX_QUERIES + 2):  # BEGIN and COMMIT are counted too
        assert client.get(page(queue), {"span": "month"}).status_code == 200


def test_the_owner_of_a_queue_counts_as_its_consumer(admin_client: Client) -> None:
    one = subscription("prices")
    text = words(admin_client.get(page(one.queue)))
    assert "subscriber of prices, QoS 1 key owner of prices" in text


def test_the_page_shows_which_consumer_is_active_and_which_wait(admin_client: Client) -> None:
    queue, node = make_queue(single_active_consumer=True), make_node()
    assert "No consumer has come." in words(admin_client.get(page(queue)))
    connection = node.pk << 32 | 7
    Consumer.objects.create(queue=queue, node=node, name="sspq 10.0.0.9:99", active=False)
    Consumer.objects.create(
        queue=queue, node=node, name="overhop 10.0.0.8:99", connection=connection, active=True,
        active_since=timezone.now() - timedelta(minutes=3),
    )  # fmt: skip
    Consumer.objects.create(queue=queue, node=node, name="", active=False)
    response = admin_client.get(page(queue))
    assert [row["consumer"].what for row in response.context["line"]] == [
        "active: overhop 10.0.0.8:99", "waits: sspq 10.0.0.9:99", "waits: a consumer",
    ]  # fmt: skip
    assert f"active: overhop 10.0.0.8:99 node {node.pk} 3 minutes" in words(response)
    assert reverse("admin:queues_node_change", args=[node.pk]) in response.content.decode()
    store_connection(connection, node)
    html = admin_client.get(page(queue)).content.decode()
    assert reverse("admin:queues_connection_change", args=[connection]) in html


def store_connection(id: int, node: Node) -> None:
    Connection.objects.create(
        id=id, node=node, protocol="overhop", address="10.0.0.8:99", connected_at=timezone.now(), messages_in=0,
        messages_out=0, in_rate=0, out_rate=0, rate=0, unacked=0, held_bytes=0,
    )  # fmt: skip


def test_the_page_shows_connections_that_take_messages_and_what_they_hold_of_this_queue_alone(
    admin_client: Client
) -> None:
    queue, other, node = make_queue(), make_queue("other"), make_node()
    cases: list[dict[int, int]] = [{queue.pk: 7}, {other.pk: 2, queue.pk: 5}, {other.pk: 2}, {}]
    for number, consumes in enumerate(cases):
        id = node.pk << 32 | number
        store_connection(id, node)
        with database.cursor() as cursor:
            update = "update queues_connection set queues = %s, queues_unacked = %s, unacked = 9 where id = %s"
            cursor.execute(update, [list(consumes), list(consumes.values()), id])
    response = admin_client.get(page(queue))
    shown = [(row["consumer"].what, row["consumer"].holds) for row in response.context["consumers"]]
    assert shown == [(f"overhop connection {node.pk}-0", 7), (f"overhop connection {node.pk}-1", 5)]
    assert reverse("admin:queues_connection_change", args=[node.pk << 32]) in response.content.decode()


def test_a_queue_without_consumers_says_so(admin_client: Client) -> None:
    assert "Nothing consumes from it now." in text_of(admin_client.get(page(make_queue())))


def test_the_reasons_are_those_of_the_newest_dead_letters(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = make_queue()
    store(queue, State.DEAD, 5, error="yesterday"), store(queue, State.DEAD, 4, error="new")
    monkeypatch.setattr("queues.admin.reasons.FEW_LETTERS", 4)
    text = words(admin_client.get(page(queue)))
    assert "Dead letters by reason, of the newest 4" in text
    assert "new 4" in text
    assert "yesterday" not in text


def test_the_page_of_a_queue_says_how_many_dead_letters_went_to_the_queue_named_for_them(
    admin_client: Client,
) -> None:
    graves, elsewhere = make_queue("graves"), make_queue("elsewhere")
    queue = make_queue("orders", dead_letter_queue=graves)
    assert "0 ever went to graves" in words(admin_client.get(page(queue)))
    for target, carried in ((graves, 1000), (elsewhere, 7)):
        DeadLetterCount.objects.create(queue=queue, target=target, carried=carried)
    DeadLetterTally.objects.create(queue=queue, target=graves, carried=234)
    assert "1,234 ever went to graves" in words(admin_client.get(page(queue)))
    assert "ever went to" not in words(admin_client.get(page(graves)))


@pytest.mark.parametrize(
    ("field", "values", "sentence"),
    [
        ("max_attempts", {"max_attempts": 0}, "A message is delivered until it is acknowledged or expires."),
        ("retry_backoff", {"retry_backoff": timedelta(0)}, "A returned message is delivered again at once."),
        ("retry_backoff", {"max_attempts": 1}, "There is no second delivery."),
        (
            "retry_backoff",
            {"max_attempts": 9, "retry_backoff": timedelta(seconds=10), "retry_backoff_cap": timedelta(seconds=30)},
            "It waits 10 s, 20 s, 30 s, 30 s, 30 s and so on between deliveries.",
        ),
        ("ack_timeout", {"ack_timeout": None}, "A consumer that hangs keeps its messages until it disconnects."),
        ("max_length", {"max_length": 5000}, "With 5,000 messages it is full."),
        ("overflow", {"max_length": 5, "overflow": "drop-oldest"}, "While it is full the oldest message is lost."),
        ("overflow", {}, "It has no effect without a maximum length."),
        ("message_ttl", {"message_ttl": timedelta(hours=2)}, "What has waited for 2 h leaves the queue undelivered."),
        ("single_active_consumer", {}, "All consumers are given messages, in turns."),
        (
            "single_active_consumer",
            {"single_active_consumer": True},
            "What the active consumer had and did not settle comes again first, in its place, to the next one.",
        ),
        ("retention", {"retention": "full"}, "Finished messages can be read, exported and published again."),
    ],
)
def test_a_setting_says_what_it_means(field: str, values: dict[str, Any], sentence: str) -> None:
    assert effects(Queue(name="orders", **values))[field] == sentence


def test_where_dead_letters_go_is_said_by_name() -> None:
    queue = Queue(name="orders", max_attempts=4, dead_letter_queue=make_queue("graveyard"))
    assert effects(queue)["max_attempts"] == "After 4 deliveries without success a message goes to graveyard."


# Actions.


def test_the_page_of_a_queue_leads_to_what_can_be_done_to_all_its_messages(
    admin_client: Client, client: Client
) -> None:
    queue = make_queue("a queue & more")
    store(queue, State.DEAD, 3), store(queue, count=2)
    text = admin_client.get(page(queue)).content.decode()
    [line] = re.findall(r'<p id="operations">(.*?)</p>', text, re.DOTALL)
    links = {words: unescape(link) for link, words in re.findall(r'<a href="([^"]*)">([^<]*)</a>', line)}
    assert len(links) == len(BulkAction)
    counts = {words: admin_client.get(link).context["found"].count for words, link in links.items()}
    assert counts["Move to another queue"] == counts["Delete"] == 5
    assert counts["Put dead letters back where they came from"] == 3
    assert counts["Deliver delayed ones now"] == 0
    [find] = re.findall(r'<a href="([^"]*)">Find messages', text)
    assert len(admin_client.get(unescape(find)).context["rows"]) == 5
    client.force_login(user_with("view_queue", "view_message"))
    assert 'id="operations"' not in client.get(page(queue)).content.decode(), "who may only look is offered nothing"


def test_a_queue_is_paused_and_resumed_from_its_page(admin_client: Client) -> None:
    queue = make_queue()
    assert page(queue, "pause") in admin_client.get(page(queue)).content.decode()
    assert "Paused orders." in text_of(admin_client.post(page(queue, "pause"), follow=True))
    assert Queue.objects.get().paused
    assert page(queue, "resume") in admin_client.get(page(queue)).content.decode()
    assert "Resumed orders." in text_of(admin_client.post(page(queue, "resume"), follow=True))
    assert not Queue.objects.get().paused
    assert admin_client.get(page(queue, "pause")).status_code == 405
    assert list(AuditJournalEntry.objects.order_by("id").values_list("event", flat=True)) == ["pause", "resume"]


def test_a_purge_from_its_page_wants_the_name_typed(admin_client: Client) -> None:
    queue = make_queue()
    store(queue, count=3)
    assert "To go on, type orders" in words(admin_client.get(page(queue, "purge")))
    admin_client.post(page(queue, "purge"), {"confirmed": "yes"})
    admin_client.post(page(queue, "purge"), {"confirmed": "yes", "typed": "other"})
    assert assert_counts_are_exact(queue).ready == 3
    done = admin_client.post(page(queue, "purge"), {"confirmed": "yes", "typed": " orders "}, follow=True)
    assert "Removed 3 messages from orders" in text_of(done)
    assert assert_counts_are_exact(queue).ready == 0


def test_several_are_purged_after_their_number_was_typed(admin_client: Client) -> None:
    queues = [make_queue(name) for name in ("a", "b")]
    for queue in queues:
        store(queue)
    pks = [queue.pk for queue in queues]
    assert "To go on, type 2 queues" in words(act(admin_client, "queue", "purge", *pks))
    act(admin_client, "queue", "purge", *pks, confirmed="yes", typed="a")
    assert all(assert_counts_are_exact(queue).ready for queue in queues)
    act(admin_client, "queue", "purge", *pks, confirmed="yes", typed="2 queues")
    assert not any(assert_counts_are_exact(queue).ready for queue in queues)


def test_a_clone_begins_with_the_policy_of_its_model(admin_client: Client) -> None:
    model = make_queue(
        "orders", max_attempts=9, message_ttl=timedelta(hours=1), overflow="drop-oldest", max_length=7,
        single_active_consumer=True,
    )  # fmt: skip
    model.dead_letter_queue = make_queue("graveyard")
    model.save()
    clone = f"{address('queue', 'add')}?clone={model.pk}"
    assert clone in admin_client.get(page(model)).content.decode()
    form = admin_client.get(clone).context["adminform"].form
    given = {name: form[name].value() for name in ("max_attempts", "message_ttl", "overflow", "max_length")}
    assert given == {
        "max_attempts": 9, "message_ttl": "01:00:00", "overflow": "drop-oldest", "max_length": 7,
    }  # fmt: skip
    assert form["single_active_consumer"].value() is True
    assert form["name"].value() is None
    assert form["dead_letter_queue"].value() == model.dead_letter_queue.pk
    assert admin_client.get(f"{address('queue', 'add')}?clone=x").status_code == 200


def test_every_field_of_the_policy_is_on_a_queues_page_and_in_its_clone(admin_client: Client) -> None:
    queue = make_queue()
    for form_page in (page(queue), f"{address('queue', 'add')}?clone={queue.pk}"):
        form = admin_client.get(form_page).context["adminform"].form
        assert set(POLICY) - set(form.fields) == set()
    assert set(POLICY) - set(form.initial) == {"paused"}


def test_a_user_with_view_permission_only_can_change_nothing_on_a_queues_page(client: Client) -> None:
    queue = make_queue()
    store(queue)
    client.force_login(user_with("view_queue"))
    html = client.get(page(queue)).content.decode()
    for name in ("pause", "purge"):
        assert page(queue, name) not in html
        assert client.post(page(queue, name), {"confirmed": "yes", "typed": "orders"}).status_code == 403
    assert "Clone" not in html
    assert "definitions" not in client.get(address("queue")).content.decode()
    User.objects.get().user_permissions.set(Permission.objects.filter(codename__in=["view_queue", "change_queue"]))
    assert client.post(page(queue, "pause")).status_code == 302
    assert client.post(page(queue, "purge"), {"confirmed": "yes", "typed": "orders"}).status_code == 403
    assert assert_counts_are_exact(queue).ready == 1


# Definitions.

EXPORT, IMPORT = "admin:queues_queue_export_definitions", "admin:queues_queue_import_definitions"


def test_definitions_are_exported_as_a_file(admin_client: Client) -> None:
    make_queue("orders", max_length=5)
    response = admin_client.get(reverse(EXPORT))
    assert response.headers["Content-Disposition"].startswith("attachment; filename=")
    assert response.json()["queues"]["orders"]["max_length"] == 5


@pytest.mark.parametrize("as_file", [True, False])
def test_definitions_are_shown_before_they_are_brought_in(admin_client: Client, as_file: bool) -> None:
    text = json.dumps({"version": 1, "queues": {"new": {"max_length": 9}}, "routes": [["topic:a", "queue:new"]]})
    given = {"file": SimpleUploadedFile("d.json", text.encode())} if as_file else {"text": text}
    shown = admin_client.post(reverse(IMPORT), given)
    assert "queue:new" in text_of(shown)
    assert not Queue.objects.exists()
    done = admin_client.post(reverse(IMPORT), {"text": shown.context["text"], "apply": "yes"}, follow=True)
    assert "Changes made: 2." in text_of(done)
    assert Queue.objects.get().max_length == 9
    assert Route.objects.exists()
    again = admin_client.post(reverse(IMPORT), {"text": text})
    assert "nothing would change" in text_of(again)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "It is no JSON"), ("[]", "Definitions are a JSON object"),
        ('{"version": 1, "queues": {"_x": {}}}', "system"),
    ],
)
def test_definitions_that_cannot_be_are_refused_with_the_reason(admin_client: Client, text: str, reason: str) -> None:
    assert reason in text_of(admin_client.post(reverse(IMPORT), {"text": text, "apply": "yes"}))
    assert not Queue.objects.exists()


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_definitions_are_read_in_every_encoding_of_json(admin_client: Client, encoding: str) -> None:
    text = '{"version": 1, "queues": {"größe": {}}}'
    shown = admin_client.post(reverse(IMPORT), {"file": SimpleUploadedFile("d.json", text.encode(encoding))})
    assert "queue:größe" in text_of(shown)
    admin_client.post(reverse(IMPORT), {"text": shown.context["text"], "apply": "yes"})
    assert Queue.objects.get().name == "größe"


def test_a_file_in_another_encoding_is_refused_with_the_reason(admin_client: Client) -> None:
    given = {"file": SimpleUploadedFile("d.json", '{"queues": {"größe": {}}}'.encode("latin-1"))}
    assert "It is no JSON, which is UTF-8, UTF-16 or UTF-32" in text_of(admin_client.post(reverse(IMPORT), given))


def test_definitions_need_change_permission_for_all_their_parts(client: Client) -> None:
    make_queue()
    client.force_login(user_with("view_queue", "add_queue", "change_queue"))
    assert client.get(reverse(EXPORT)).status_code == 403
    keys = {"version": 1, "api_keys": {"billing": {"publish": ["*"]}}}
    assert client.post(reverse(IMPORT), {"text": json.dumps(keys), "apply": "yes"}).status_code == 403
    queues = {"version": 1, "queues": export_definitions()["queues"]}
    assert client.post(reverse(IMPORT), {"text": json.dumps(queues), "apply": "yes"}).status_code == 302
    User.objects.get().user_permissions.set(Permission.objects.filter(codename="view_queue"))
    assert client.get(reverse(IMPORT)).status_code == 403


def test_a_queue_is_still_made_and_changed_on_its_form(admin_client: Client) -> None:
    assert admin_client.post(address("queue", "add"), policy()).status_code == 302
    queue = Queue.objects.get()
    assert admin_client.post(page(queue), policy(max_length="0")).status_code == 200, "refused, with its page"
    assert not QueueSample.objects.exists()


@pytest.mark.parametrize("action", ["purge", "delete_selected"])
def test_an_action_on_queues_that_are_gone_says_so(admin_client: Client, action: str) -> None:
    given = {"action": action, "_selected_action": ["987654"]}
    response = admin_client.post(reverse("admin:queues_queue_changelist"), given, follow=True)
    assert "None of what was chosen is there any more." in response.content.decode()
