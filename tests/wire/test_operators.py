"""Actions on the admin's pages are told to running listeners as they commit, and are obeyed after a restart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from django.test import Client
from django.urls import reverse

from queues.engine.cluster.notifications.formats import CHANNEL, Changed, Hint, parse
from queues.models import ApiKey, Message, Queue
from queues.operations import keys
from tests.waiting import PATIENCE, wait_until
from tests.wire.broker import NO_RECEIVE, Blip, Broker, Sspq, message, nack, put
from wire.blipmq import codec as blipmq
from wire.sspq.codec import RECEIVE_PACKET


class Told:
    """Hears what all listeners are told. Without it they find out by a look that comes seconds later."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self._connection.execute(f"listen {CHANNEL}")

    def close(self) -> None:
        self._connection.close()

    def __call__(self, hint: Hint) -> bool:
        """Whether they are told this, or have been since the last time."""
        return any(parse(one.payload) == hint for one in self._connection.notifies(timeout=PATIENCE))


@pytest.fixture
def told(database_url: str) -> Iterator[Told]:
    with closing(Told(database_url)) as told:
        yield told


@pytest.fixture
def broker(database_url: str) -> Iterator[Broker]:
    keys.create_key("dev-key", key="dev-key")
    with Broker(database_url) as running:
        yield running


def press(client: Client, model: str, page: str, pk: Any, **fields: Any) -> None:
    """Press a button on the page of an object."""
    answer = client.post(reverse(f"admin:queues_{model}_{page}", args=[pk]), fields)
    assert answer.status_code == 302, answer.content.decode()


def settings_of(client: Client, queue: Queue) -> dict[str, Any]:
    """The fields of a queue's form as the page shows them."""
    form = client.get(reverse("admin:queues_queue_change", args=[queue.pk])).context["adminform"].form
    values = {name: form[name].value() for name in form.fields}
    return {name: value for name, value in values.items() if value not in (None, False)}


def test_a_queue_paused_on_its_page_delivers_nothing_also_after_a_restart(
    admin_client: Client, broker: Broker, told: Told
) -> None:
    queue = Queue.objects.get(name="sspq")
    with Sspq(broker.sspq) as consumer:
        consumer.send(RECEIVE_PACKET)
        assert consumer.is_silent(0.05)
        press(admin_client, "queue", "change", queue.pk, **settings_of(admin_client, queue), refuse_when_paused="on")
        assert told(Changed("queue", queue.pk))
        press(admin_client, "queue", "pause", queue.pk)
        assert told(Changed("queue", queue.pk))
        assert consumer.read() == NO_RECEIVE
        consumer.hang_up()
    with broker.restarted() as again:
        put(again.sspq, b"kept")
        with Sspq(again.sspq) as consumer:
            assert consumer.receive() == NO_RECEIVE
            press(admin_client, "queue", "resume", queue.pk)
            assert told(Changed("queue", queue.pk))
            assert consumer.receive_message() == message(b"kept", 3)
            consumer.confirm()
            consumer.hang_up()


def test_a_limit_set_in_the_form_holds_at_once_and_after_a_restart(
    admin_client: Client, broker: Broker, told: Told
) -> None:
    queue = Queue.objects.get(name="sspq")
    given = settings_of(admin_client, queue) | {"max_length": "2", "overflow": "drop-oldest"}
    press(admin_client, "queue", "change", queue.pk, **given)
    assert told(Changed("queue", queue.pk))
    put(broker.sspq, *(b"%d" % n for n in range(5)))
    with broker.restarted() as again:
        put(again.sspq, b"5")
        wait_until(lambda: Message.objects.filter(payload=b"5").exists(), "the last message")
        assert [bytes(one) for one in Message.objects.values_list("payload", flat=True)] == [b"4", b"5"]


def test_a_purge_takes_what_the_listener_has_in_memory_and_nothing_comes_back(
    admin_client: Client, broker: Broker
) -> None:
    with Blip(broker.blipmq) as client:
        subscription = client.subscribe(b"prices")
        queue = Queue.objects.get(subscription=subscription)
        client.publish(b"prices", *(b"%d" % n for n in range(50)))
        assert client.consume(subscription, 1) == [b"0"]
        press(admin_client, "queue", "purge", queue.pk, confirmed="yes", typed=queue.name)
        wait_until(lambda: not Message.objects.exists(), "an empty queue")
        client.publish(b"prices", b"new")
        assert client.consume(subscription, 1) == [b"new"]
    with broker.restarted() as again, Blip(again.blipmq) as client:
        assert client.poll(subscription) is None


def test_a_key_revoked_in_the_list_ends_its_connections_for_good(
    admin_client: Client, broker: Broker, told: Told
) -> None:
    keys.create_key("app", key="app-key")
    key = ApiKey.objects.get(name="app")
    with Blip(broker.blipmq, "app-key") as client:
        assert client.ask() == []
        given = {"action": "revoke", "_selected_action": [str(key.pk)], "confirmed": "yes"}
        admin_client.post(reverse("admin:queues_apikey_changelist"), given)
        assert told(Changed("key", key.pk))
        assert client.rest() == b""
    with broker.restarted() as again, Blip(again.blipmq, key="") as client:
        client.send(blipmq.encode_hello(1), blipmq.encode_auth(5, "app-key"))
        client.read()
        assert client.read() == nack(5, 401, "invalid API key")
