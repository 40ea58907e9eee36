"""Jobs on the operators' pages."""

from __future__ import annotations

import msgpack  # type: ignore[import-untyped]
import pytest
from django.test import Client
from django.utils import timezone

from queues.api import publish
from queues.models import ArchivedMessage, Content, Message
from queues.operations.jobs import write_log
from tests.queues.admin.test_admin import address, text_of
from tests.queues.store import make_queue

pytestmark = pytest.mark.django_db


def test_a_jobs_page_shows_its_payload_as_a_value_its_priority_and_what_its_workers_wrote(admin_client: Client) -> None:
    queue = make_queue("jobs")
    body = msgpack.packb({"raw": b"\x00\xff", "to": "ann"})
    id = publish("jobs", body, content_type="application/msgpack", priority=5)
    assert id is not None
    write_log(queue.pk, id, "<b>half way</b>")
    message = Message.objects.get()
    assert message.pk < 0
    page = admin_client.get(address("message", "change", message.pk))
    shown = " ".join(text_of(page).split())
    for part in ('"to": "ann"', '"raw": "00 ff"', "MessagePack", "Priority: 5", "half way"):
        assert part in shown
    assert b"<b>half" not in page.content
    assert admin_client.get(address("message", "payload", message.pk)).content == body
    listed = text_of(admin_client.get(address("message")))
    assert '"to": "ann"}' in listed


def test_a_finished_jobs_page_shows_its_result_and_its_log(admin_client: Client) -> None:
    queue = make_queue("jobs")
    done = ArchivedMessage.objects.create(
        id=4096, queue=queue, outcome=0, attempts=0, published_at=timezone.now(), finished_at=timezone.now(), size=1,
        job=True, content=Content.MSGPACK, result=msgpack.packb(["sent", 3]),
    )  # fmt: skip
    write_log(queue.pk, 4096, "all done")
    shown = " ".join(text_of(admin_client.get(address("archivedmessage", "change", done.pk))).split())
    assert '[ "sent", 3 ]' in shown
    assert "all done" in shown
