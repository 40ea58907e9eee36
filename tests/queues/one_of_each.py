"""An object of every model of `queues` that the admin shows, in any project. To be imported when Django is set up."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import uuid4

from django.db.models import Model

from queues.audit.chains import append
from queues.audit.events import AuditEvent
from queues.models import (
    ArchivedMessage,
    AuditChain,
    AuditRow,
    BulkOperation,
    Connection,
    EtlRun,
    EtlSchedule,
    Mailbox,
    PeriodicJob,
    QueueSample,
    Rollup,
    Route,
    State,
    Subscription,
    Worker,
)
from queues.operations import keys
from tests.queues.store import make_node, make_queue, store


def one_of_each() -> list[Model]:
    """Made now, in the default database."""
    now, owner = datetime.now(UTC), keys.create_key("an owner")[0]
    queue, topic = make_queue(), make_queue("_subscription/1", kind="subscription")
    mailbox = make_queue("_peer/bob", kind="mailbox", max_attempts=0)
    append("peerbus", [AuditEvent("send", "m1", "alice", "bob")])
    node = make_node()
    archived = ArchivedMessage(
        id=1, queue=queue, outcome=0, attempts=1, published_at=now, finished_at=now, size=3, payload=b"<b>"
    )
    ArchivedMessage.objects.bulk_create([archived])
    return [
        queue, archived, node, owner,
        store(queue, State.DEAD, payload=b'{"a":"<script>"}', error="<b>", headers={"x": "y"})[0],
        Mailbox.objects.create(queue=mailbox, name="bob", owner=owner),
        Subscription.objects.create(topic=b"prices", qos=1, queue=topic, owner=owner),
        Route.objects.create(source="queue:a", target="topic:t"),
        Worker.objects.create(wid=uuid4(), node=node, address="192.0.2.7:1", connected_at=now),
        Connection.objects.create(
            id=1, node=node, protocol="overhop", address="192.0.2.7:1", connected_at=now, messages_in=1,
            messages_out=1, in_rate=0.5, out_rate=0.5, rate=1.0, unacked=1, held_bytes=100,
        ),
        AuditChain.objects.get(name="peerbus"), AuditRow.objects.get(chain__name="peerbus"),
        PeriodicJob.objects.create(name="nightly", cron="0 3 * * *", queue=queue),
        EtlRun.objects.create(trigger="test", output="/elsewhere"),
        EtlSchedule.objects.create(name="hourly", cron="0 * * * *"),
        Rollup.objects.create(queue=queue.name, hour=now, acknowledged=1),
        QueueSample.objects.create(
            queue=queue.pk, at=now, seconds=60.0, ready=1, leased=0, delayed=0, dead=0, peak=1, published=1, settled=0,
            died=0,
        ),
        BulkOperation.objects.create(action="move", criteria={}, by="alice", high=1, state="done", ended_at=now),
    ]  # fmt: skip
