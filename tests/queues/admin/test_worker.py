"""Workers in the operators' pages."""

from __future__ import annotations

import re
import time
from datetime import timedelta
from html import unescape
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.contrib.auth.models import User
from django.db import IntegrityError, connection, transaction
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django.fixtures import DjangoAssertNumQueries

from queues.engine.uuids import message_uuid
from queues.models import Message, Node, Worker
from tests.queues.store import make_node, make_queue, store

pytestmark = pytest.mark.django_db

LIST = "admin:queues_worker_changelist"
SID = "6b1f0c9a-0000-4000-8000-000000000001"


def text_of(response: Any) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", response.content.decode())).split())


def subscription(queue: str = "orders", credits: int = 5, active: int = 2) -> dict[str, Any]:
    return {"sid": SID, "queue": queue, "credits": credits, "active": active}


def job(message: Message, ago: float = 65, left: float | None = 330, attempt: int = 1) -> dict[str, Any]:
    now, queue = time.time(), message.queue
    jid = f"{queue.name}:{message_uuid(queue.uuid, message.origin_id or message.pk)}"
    deadline = None if left is None else now + left
    return {"jid": jid, "queue": queue.name, "attempt": attempt, "since": now - ago, "deadline": deadline}


def make_worker(node: Node | None = None, **fields: Any) -> Worker:
    values = {
        "wid": uuid4(), "node": node or make_node(), "address": "192.0.2.7:50123", "connected_at": timezone.now(),
        "subscriptions": [subscription()], **fields,
    }  # fmt: skip
    return Worker.objects.create(**values)


def page(worker: Worker) -> str:
    return reverse("admin:queues_worker_change", args=[worker.pk])


def test_the_list_shows_workers_their_nodes_and_queues(admin_client: Client) -> None:
    connected = timezone.now() - timedelta(minutes=3, seconds=10)
    worker = make_worker(
        subscriptions=[subscription("b", 4321), subscription("a")], requests=1234, connected_at=connected
    )
    shown = text_of(admin_client.get(reverse(LIST)))
    for part in (str(worker.wid), "192.0.2.7:50123", str(worker.node), "a (5), b (4,321)", "3 minutes ago"):
        assert part in shown


@pytest.mark.parametrize("rows", [1, 5])
def test_the_list_takes_as_many_queries_for_many_rows_as_for_one(
    admin_client: Client, django_assert_num_queries: DjangoAssertNumQueries, rows: int
) -> None:
    for _ in range(rows):
        make_worker()
    with django_assert_num_queries(2 + 3):  # session and user; the number, the page, the nodes to choose from
        response = admin_client.get(reverse(LIST))
    assert len(response.context["cl"].result_list) == rows


def test_the_page_shows_credits_by_queue_and_what_is_being_worked_on(admin_client: Client) -> None:
    queue = make_queue("orders")
    first, second = store(queue, count=2)
    gone = Message(id=second.pk + 1, queue=queue)
    worker = make_worker(
        subscriptions=[subscription("orders", credits=5000, active=3), subscription("elsewhere", 1, 0)],
        jobs=[job(first), job(second, ago=0, left=None, attempt=4), job(gone, left=-5.5)],
        active=3,
    )
    response = admin_client.get(page(worker))
    html, shown = response.content.decode(), text_of(response)
    assert f"orders 5,000 3 {SID} elsewhere 1 0 {SID}" in shown
    assert f'href="{reverse("admin:queues_queue_change", args=[queue.pk])}"' in html
    assert f'href="{reverse("admin:queues_node_change", args=[worker.node_id])}"' in html
    assert f"{worker.jobs[0]['jid']} orders 1 1 minute in 5 minutes" in shown
    assert re.search(rf"{worker.jobs[1]['jid']} orders 4 \d+ seconds? none", shown)
    assert re.search(rf"{worker.jobs[2]['jid']} orders 1 1 minute \d+ seconds ago", shown)
    for message, linked in ((first, True), (second, True), (gone, False)):
        assert (f'href="{reverse("admin:queues_message_change", args=[message.pk])}"' in html) is linked
    assert "more" not in shown


def test_a_job_that_went_to_the_tail_leads_to_where_it_is_now(admin_client: Client) -> None:
    [message] = store(make_queue("orders"))
    worker = make_worker(jobs=[job(message)], active=1)
    Message.objects.update(id=message.pk + 1, origin_id=message.pk)
    address = reverse("admin:queues_message_change", args=[message.pk + 1])
    assert f'href="{address}"' in admin_client.get(page(worker)).content.decode()


def test_jobs_that_are_not_listed_are_counted(admin_client: Client) -> None:
    messages = store(make_queue("orders"), count=20)
    worker = make_worker(jobs=[job(message) for message in messages], active=1021)
    assert "and 1,001 more" in text_of(admin_client.get(page(worker)))


def test_a_worker_takes_as_many_queries_for_many_jobs_as_for_one(
    admin_client: Client, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    messages = store(make_queue("orders"), count=20)
    for jobs in (messages[:1], messages):
        worker = make_worker(jobs=[job(message) for message in jobs], subscriptions=[subscription()] * len(jobs))
        with django_assert_num_queries(2 + 3):  # session and user; the worker, the queues, the messages
            admin_client.get(page(worker))


def test_a_worker_without_subscriptions_and_jobs_has_none(admin_client: Client) -> None:
    assert text_of(admin_client.get(page(make_worker(subscriptions=[])))).count("none") == 2


def test_names_given_by_a_client_are_shown_as_text(admin_client: Client) -> None:
    name = "<script>alert(1)</script>"
    queue = make_queue(name)
    [message] = store(queue)
    worker = make_worker(address=name, subscriptions=[subscription(name)], jobs=[job(message)])
    for address in (reverse(LIST), page(worker), reverse("admin:queues_queue_change", args=[queue.pk])):
        html = admin_client.get(address).content.decode()
        assert "&lt;script&gt;alert" in html
        assert name not in html


def test_the_pages_load_themselves_again(admin_client: Client) -> None:
    for address in (reverse(LIST), page(make_worker())):
        assert 'data-every="3"' in admin_client.get(address).content.decode()


def test_the_page_of_a_worker_that_left_leads_to_the_list(admin_client: Client) -> None:
    worker = make_worker()
    worker.delete()
    worker.wid = UUID(int=7)
    response = admin_client.get(page(worker), follow=True)
    assert response.redirect_chain == [(reverse(LIST), 302)]
    assert f"Worker {worker.wid} is not connected any more." in text_of(response)


def test_workers_are_read_only(admin_client: Client) -> None:
    worker = make_worker()
    assert admin_client.get(reverse("admin:queues_worker_add")).status_code == 403
    assert admin_client.post(page(worker), {"address": "x"}).status_code == 403
    delete = reverse("admin:queues_worker_delete", args=[worker.pk])
    assert admin_client.post(delete, {"confirmed": "yes"}).status_code == 403
    assert Worker.objects.get().address == worker.address


def test_workers_need_view_permission(client: Client) -> None:
    client.force_login(User.objects.create_user("staff", is_staff=True))
    for address in (reverse(LIST), page(make_worker())):
        assert client.get(address).status_code == 403


def test_a_queues_page_lists_the_workers_that_subscribe_to_it(admin_client: Client) -> None:
    queue = make_queue("orders")
    address = reverse("admin:queues_queue_change", args=[queue.pk])
    assert "Nothing consumes from it now." in text_of(admin_client.get(address))
    node = make_node()
    one = make_worker(node, subscriptions=[subscription("other", 7777, 7), subscription("orders", 1005, 2)])
    two = make_worker(node, subscriptions=[subscription("orders", 0, 0)], address="192.0.2.8:1")
    three = make_worker(node, subscriptions=[subscription("orders2")])
    shown = " ".join(text_of(admin_client.get(address)).split())
    assert re.search(rf"worker {one.wid} 192.0.2.7:50123, node {node.pk} (now|.* ago) 1005 2", shown)
    assert re.search(rf"worker {two.wid} 192.0.2.8:1, node {node.pk} (now|.* ago) 0 0", shown)
    assert str(three.wid) not in shown
    assert "7,777" not in shown
    assert f'href="{page(one)}"' in admin_client.get(address).content.decode()


def test_workers_vanish_with_their_node() -> None:
    one, other = make_node(), make_node()
    make_worker(one), make_worker(one)
    kept = make_worker(other)
    with connection.cursor() as cursor:
        cursor.execute("delete from queues_node where id = %s", [one.pk])
    assert list(Worker.objects.all()) == [kept]


def test_a_node_that_is_gone_can_write_no_worker() -> None:
    node = make_node()
    Node.objects.filter(pk=node.pk).delete()
    with pytest.raises(IntegrityError), transaction.atomic():
        make_worker(node)
