"""`manage.py queue`."""

from __future__ import annotations

import argparse
import base64
import os
import re
from datetime import timedelta
from pathlib import Path

import pytest

from queues.management.commands.queue import _add_create
from queues.models import Message, Queue, State
from queues.operations.queues import POLICY
from tests.queues.shell import Shell
from tests.queues.store import assert_counts_are_exact, make_queue, store

pytestmark = pytest.mark.django_db


def test_a_queue_is_created_with_every_option(shell: Shell) -> None:
    make_queue("dead")
    outcome = shell(
        "queue", "create", "orders", "--ack-timeout", "1.5", "--max-attempts", "0", "--retry-backoff", "0.25",
        "--retry-backoff-cap", "60", "--ttl", "3600", "--max-length", "10", "--overflow", "drop-oldest",
        "--retention", "full", "--concurrency-limit", "2", "--dead-letter-queue", "dead", "--single-active-consumer",
    )  # fmt: skip
    assert (outcome.status, outcome.out) == (0, "created orders\n")
    queue = Queue.objects.get(name="orders")
    assert queue.ack_timeout == timedelta(seconds=1.5)
    assert queue.retry_backoff == timedelta(seconds=0.25)
    assert queue.retry_backoff_cap == timedelta(minutes=1)
    assert queue.message_ttl == timedelta(hours=1)
    assert (queue.max_attempts, queue.max_length, queue.concurrency_limit) == (0, 10, 2)
    assert (queue.overflow, queue.retention) == ("drop-oldest", "full")
    assert queue.dead_letter_queue is not None
    assert queue.single_active_consumer
    assert shell("queue", "show", "orders", "--json").json["single_active_consumer"] is True


def test_every_field_of_the_policy_has_an_option_and_is_shown(shell: Shell) -> None:
    make_queue()
    assert set(POLICY) - set(shell("queue", "show", "orders", "--json").json) == set()
    parser = argparse.ArgumentParser()
    _add_create(parser)
    options = {action.dest for action in parser._actions}
    assert set(POLICY) - options == set()


def test_an_ack_timeout_of_0_is_none(shell: Shell) -> None:
    shell("queue", "create", "orders", "--ack-timeout", "0")
    assert Queue.objects.get().ack_timeout is None


def test_the_list_has_the_name_and_the_counts_of_every_queue(shell: Shell) -> None:
    queue = make_queue()
    make_queue("_subscription/1/prices", kind="subscription")
    for n, state in enumerate((State.READY, State.LEASED, State.DELAYED, State.DEAD), 1):
        store(queue, state, n)
    listed = {shown["name"]: shown for shown in shell("queue", "list", "--json").json}
    assert listed.keys() == {"orders", "_subscription/1/prices"}
    assert listed["orders"].items() >= {"ready": 1, "leased": 2, "delayed": 3, "dead": 4, "paused": False}.items()
    table = shell("queue", "list").out.splitlines()
    assert table[0].split() == ["NAME", "READY", "LEASED", "DELAYED", "DEAD", "PUBLISHED", "SETTLED", "PAUSED"]
    assert table[2].split() == ["orders", "1", "2", "3", "4", "10", "0", "no"]


def test_a_queue_is_shown_with_policy_counts_and_routes(shell: Shell) -> None:
    store(make_queue(message_ttl=timedelta(seconds=1.5)))
    shell("route", "add", "topic:prices", "orders")
    shell("route", "add", "orders", "copy")
    shown = shell("queue", "show", "orders", "--json").json
    assert (shown["ready"], shown["message_ttl"]) == (1, 1.5)
    assert (shown["routes_from"], shown["routes_to"]) == (["topic:prices"], ["queue:copy"])
    text = shell("queue", "show", "orders").out
    assert re.search("^message ttl +0:00:01.500000$", text, re.MULTILINE)
    assert re.search("^single active consumer +no$", text, re.MULTILINE)


def test_pause_and_resume(shell: Shell) -> None:
    make_queue()
    assert shell("queue", "pause", "orders").status == 0
    assert shell("queue", "show", "orders", "--json").json["paused"] is True
    assert shell("queue", "resume", "orders").status == 0
    assert shell("queue", "show", "orders", "--json").json["paused"] is False


# Publishing and peeking.


def test_a_text_is_published_with_headers_delay_and_key(shell: Shell) -> None:
    make_queue()
    outcome = shell("queue", "publish", "orders", "hé", "--header", "a=b=c", "--header", "d=", "--key", "k")
    message = Message.objects.get()
    assert outcome.out == f"{message.pk}\n"
    assert bytes(message.payload) == "hé".encode()
    assert (message.headers, message.key) == ({"a": "b=c", "d": ""}, "k")
    assert shell("queue", "publish", "orders", "", "--delay", "0.5", "--json").json["id"] > message.pk
    assert "is the broker's own" in shell("queue", "publish", "orders", "", "--header", "dead-letter=x").err
    assert Message.objects.get(state=State.DELAYED).due_at is not None


@pytest.mark.parametrize("how", [("-",), ("--file", "-"), ()])
def test_standard_input_is_published_byte_for_byte(shell: Shell, how: tuple[str, ...]) -> None:
    make_queue()
    body = os.urandom(1000)
    shell("queue", "publish", "orders", *how, stdin=body)
    assert bytes(Message.objects.get().payload) == body


def test_a_file_is_published_byte_for_byte(shell: Shell, tmp_path: Path) -> None:
    make_queue()
    (tmp_path / "body").write_bytes(b"\0\xff")
    assert shell("queue", "publish", "orders", "--file", str(tmp_path / "body")).status == 0
    assert bytes(Message.objects.get().payload) == b"\0\xff"
    missing = shell("queue", "publish", "orders", "--file", str(tmp_path / "gone"))
    assert missing.status == 2
    assert "cannot be read" in missing.err


def test_a_publish_to_a_topic_without_subscriptions_is_said_to_be_dropped(shell: Shell) -> None:
    outcome = shell("queue", "publish", "topic:prices", "x")
    assert (outcome.status, outcome.out) == (0, "")
    assert "dropped" in outcome.err


def test_peeking_shows_text_and_bytes_and_leaves_them(shell: Shell) -> None:
    queue = make_queue()
    store(queue, payload="hé\n".encode(), headers={"a": 1}), store(queue, payload=b"\xff" * 100)
    text, binary = shell("queue", "peek", "orders", "--json").json
    assert (text["payload"], text["headers"], text["state"]) == ("hé\n", {"a": 1}, "ready")
    assert (binary["payload"], base64.b64decode(binary["payload_base64"])) == (None, b"\xff" * 100)
    table = shell("queue", "peek", "orders", "--limit", "1").out
    assert "hé·" in table
    assert shell("queue", "peek", "orders", "--state", "dead", "--json").json == []
    assert assert_counts_are_exact(queue).ready == 2


# Confirmations.


def test_a_purge_asks_and_takes_what_waits(shell: Shell) -> None:
    queue = make_queue()
    store(queue, count=2), store(queue, State.DEAD)
    unasked = shell("queue", "purge", "orders")
    assert unasked.status == 2
    assert "Remove 0 delayed and 2 ready messages from 'orders'?" in unasked.err
    assert shell("queue", "purge", "orders", "--yes").out == "removed 2 messages\n"
    assert shell("queue", "purge", "orders", "--yes", "--state", "dead").out == "removed 1 messages\n"
    assert assert_counts_are_exact(queue).held == 0


@pytest.mark.parametrize(("answer", "status", "left"), [("y", 0, 0), ("no", 1, 1), ("", 1, 1)])
def test_on_a_terminal_the_answer_counts(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, answer: str, status: int, left: int
) -> None:
    queue = make_queue()
    store(queue)
    monkeypatch.setattr("queues.management.shell.on_terminal", lambda: True)
    monkeypatch.setattr("builtins.input", lambda question: answer)
    assert shell("queue", "purge", "orders").status == status
    assert assert_counts_are_exact(queue).ready == left


def test_messages_move_between_queues(shell: Shell) -> None:
    source, target = make_queue(), make_queue("target")
    store(source, count=3), store(source, State.DEAD)
    assert shell("queue", "move", "orders", "target", "--yes", "--limit", "2").out == "moved 2 messages\n"
    assert shell("queue", "move", "orders", "target", "--yes", "--state", "dead").out == "moved 1 messages\n"
    assert assert_counts_are_exact(source).ready == 1
    assert assert_counts_are_exact(target).ready == 3


def test_a_queue_is_deleted_when_it_is_empty_or_by_force(shell: Shell) -> None:
    store(make_queue(), count=2), make_queue("empty")
    assert shell("queue", "delete", "empty").status == 0
    refused = shell("queue", "delete", "orders", "--yes")
    assert refused.status == 1
    assert "holds 2 messages" in refused.err
    assert shell("queue", "delete", "orders", "--force").status == 2
    assert shell("queue", "delete", "orders", "--force", "--yes").out == "deleted orders with 2 messages\n"
    assert not Queue.objects.exists()


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (("create", "orders"), 1, "already"),
        (("create", "_x"), 1, "system"),
        (("create", "x", "--ttl", "0"), 1, "message_ttl"),
        (("create", "x", "--ttl", "soon"), 2, "'soon' is no time"),
        (("create", "x", "--max-length", "0"), 2, "whole number"),
        (("create", "x", "--overflow", "burst"), 2, "burst"),
        (("create", "x", "--dead-letter-queue", "gone"), 1, "'gone'"),
        (("show", "gone"), 1, "'gone'"),
        (("peek", "gone"), 1, "'gone'"),
        (("pause", "gone"), 1, "'gone'"),
        (("purge", "gone", "--yes"), 1, "'gone'"),
        (("move", "orders", "gone", "--yes"), 1, "'gone'"),
        (("move", "orders", "orders", "--yes"), 1, "same queue"),
        (("delete", "gone", "--yes"), 1, "'gone'"),
        (("publish", "gone", "x"), 1, "queue create gone"),
        (("publish", "orders", "x", "--file", "y"), 2, "either"),
        (("publish", "orders", "x", "--header", "y"), 2, "K=V"),
        (("publish", "topic:", "x"), 1, "empty"),
        (("dance",), 2, "dance"),
    ],
)
def test_refusals_have_a_reason_and_a_status(
    shell: Shell, arguments: tuple[str, ...], status: int, reason: str
) -> None:
    make_queue()
    outcome = shell("queue", *arguments)
    assert outcome.status == status
    assert reason in outcome.err
    assert outcome.out == ""
    assert Queue.objects.count() == 1


def test_every_subcommand_explains_itself(shell: Shell) -> None:
    for name in ("create", "list", "show", "pause", "resume", "purge", "move", "publish", "peek", "delete"):
        outcome = shell("queue", name, "--help")
        assert outcome.status == 0
        assert f"queue {name}" in outcome.out
