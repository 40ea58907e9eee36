"""``manage.py messages``."""

from __future__ import annotations

import pytest

from queues.models import AuditJournalEntry, BulkAction, Message, State
from queues.operations import bulk
from queues.operations.bulk import BulkPlan
from queues.operations.search import Criteria
from tests.queues.shell import Shell
from tests.queues.store import assert_counts_are_exact, make_queue, store

pytestmark = pytest.mark.django_db


def test_messages_are_found_and_the_search_goes_on_where_it_stopped(shell: Shell) -> None:
    ids = [message.pk for message in store(make_queue("orders"), count=3, key=None, headers={"a": "1"})]
    asked = ("--queue", "orders", "--header", "a", "--value", "1", "--limit", "2")
    found = shell("messages", "find", *asked, "--json").json
    assert [message["id"] for message in found["messages"]] == ids[:2]
    rest = shell("messages", "find", "--queue", "orders", "--after", found["after"], "--json").json
    assert [message["id"] for message in rest["messages"]] == ids[2:]
    assert rest["after"] is None
    listed = shell("messages", "find", "--id", str(ids[0]))
    assert str(ids[0]) in listed.out
    assert "Looked at 1 messages, which is all." in listed.err


def test_all_that_are_found_are_moved_and_it_is_recorded(shell: Shell) -> None:
    source, target = make_queue("orders"), make_queue("other")
    store(source, count=3)
    assert shell("messages", "move", "--queue", "orders", "--to", "other").status == 2
    assert assert_counts_are_exact(source).ready == 3
    done = shell("messages", "move", "--queue", "orders", "--to", "other", "--yes")
    assert (done.status, done.out) == (0, "3 done, 0 left alone\n")
    assert assert_counts_are_exact(target).ready == 3
    assert AuditJournalEntry.objects.filter(chain="operators", event="move", sender__startswith="shell:").exists()
    [operation] = shell("messages", "operations", "--json").json
    assert (operation["state"], operation["done"]) == ("done", 3)


@pytest.mark.parametrize(
    ("arguments", "state"),
    [(["put-back"], State.READY), (["delay", "--for", "60"], State.DEAD), (["delete"], None)],
)
def test_dead_letters_are_put_back_or_deleted_and_are_not_delayed(
    shell: Shell, arguments: list[str], state: State | None
) -> None:
    store(make_queue("orders"), State.DEAD)
    shell("messages", *arguments, "--queue", "orders", "--yes")
    assert list(Message.objects.values_list("state", flat=True)) == ([] if state is None else [state])


def test_failures_and_refusals_have_a_reason_and_a_status(shell: Shell) -> None:
    store(make_queue("orders"), count=2)
    make_queue("full", max_length=1)
    failed = shell("messages", "move", "--queue", "orders", "--to", "full", "--yes")
    assert failed.status == 1
    assert "0 done" in failed.err
    for arguments in (["delete", "--yes"], ["find", "--queue", "nowhere"], ["cancel", "99"]):
        assert shell("messages", *arguments).status == 1
    assert shell("messages", "find", "--since", "yesterday").status == 2


def test_an_operation_is_cancelled(shell: Shell) -> None:
    make_queue("orders")
    operation = bulk.start(BulkPlan(action=BulkAction.DELETE, criteria=Criteria(queue="orders")), "alice")
    assert shell("messages", "cancel", str(operation.pk)).out == f"cancelled {operation.pk}\n"
    assert "cancelled" in shell("messages", "operations").out
