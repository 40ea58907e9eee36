"""`manage.py subscription`."""

from __future__ import annotations

import pytest

from queues.models import Message, Queue, Subscription
from tests.queues.shell import Shell
from tests.queues.store import make_queue, store

pytestmark = pytest.mark.django_db


def subscribe(topic: str, held: int = 0) -> Subscription:
    queue = make_queue(f"_subscription/{Subscription.objects.count()}", kind="subscription")
    if held:
        store(queue, count=held)
    return Subscription.objects.create(topic=topic.encode(), qos=1, queue=queue)


@pytest.fixture
def prices() -> list[Subscription]:
    return [subscribe("prices", 3), subscribe("prices"), subscribe("orders", 1)]


def test_subscriptions_are_listed_with_what_they_hold(shell: Shell, prices: list[Subscription]) -> None:
    listed = shell("subscription", "list", "--json").json
    assert [(one["id"], one["topic"], one["ready"]) for one in listed] == [
        (prices[0].pk, "prices", 3), (prices[1].pk, "prices", 0), (prices[2].pk, "orders", 1),
    ]  # fmt: skip
    assert len(shell("subscription", "list", "--topic", "prices", "--json").json) == 2
    assert "prices" in shell("subscription", "list").out
    assert "There are no subscriptions." in shell("subscription", "list", "--topic", "none").err


def test_a_subscription_is_deleted_with_its_messages(shell: Shell, prices: list[Subscription]) -> None:
    deleted = shell("subscription", "delete", str(prices[0].pk), "--yes")
    assert (deleted.status, deleted.out) == (0, f"deleted {prices[0].pk} of prices with 3 messages\n")
    assert set(Subscription.objects.values_list("id", flat=True)) == {prices[1].pk, prices[2].pk}
    assert Message.objects.count() == 1
    assert Queue.objects.count() == 2


def test_all_of_a_topic_are_deleted_together(shell: Shell, prices: list[Subscription]) -> None:
    deleted = shell("subscription", "delete", "--topic", "prices", "--yes", "--json").json
    assert [(one["id"], one["messages"]) for one in deleted] == [(prices[0].pk, 3), (prices[1].pk, 0)]
    assert [one.topic_text for one in Subscription.objects.all()] == ["orders"]


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        ((), 2, "Name subscriptions by their ids, or a topic"),
        (("1", "--topic", "prices", "--yes"), 2, "Name subscriptions by their ids, or a topic"),
        (("987654", "--yes"), 1, "There is no subscription 987654."),
        (("--topic", "none", "--yes"), 1, "There is no subscription of 'none'."),
        (("--topic", "prices"), 2, "Delete 2 subscriptions with 3 messages? Repeat it with --yes"),
        (("some",), 2, "'some' is not a whole number"),
    ],
)
def test_refusals_have_a_reason_and_delete_nothing(
    shell: Shell, prices: list[Subscription], arguments: tuple[str, ...], status: int, reason: str
) -> None:
    refused = shell("subscription", "delete", *arguments)
    assert (refused.status, reason in refused.err) == (status, True)
    assert Subscription.objects.count() == 3
