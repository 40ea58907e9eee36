"""Definitions out and in, and `manage.py definitions`."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from queues.models import ApiKey, PeriodicJob, Queue, Route
from queues.operations.definitions import InvalidDefinitions, export_definitions, import_definitions
from queues.operations.keys import create_key
from queues.operations.periodic import add_periodic
from queues.operations.queues import POLICY, create_queue
from queues.operations.routes import add_route
from tests.queues.shell import Shell

pytestmark = pytest.mark.django_db


def make_everything() -> None:
    create_queue("failed")
    create_queue(
        "orders", max_attempts=7, retry_backoff=2.5, max_length=10, dead_letter_queue=Queue.objects.get(name="failed")
    )
    add_route("topic:prices", "orders")
    add_periodic("reminders", "*/15 * * * *", "orders", payload={"to": "all"}, priority=3)
    create_key("shop", "0123456789abcdef", protocols=["blipmq"], publish=["orders.*"], consume=[])


def remove_everything() -> None:
    for model in (PeriodicJob, Route, Queue, ApiKey):
        model._default_manager.all().delete()


def test_an_import_of_an_export_makes_the_same_but_for_keys() -> None:
    make_everything()
    exported = json.loads(json.dumps(export_definitions()))
    remove_everything()
    changes = import_definitions(exported, "ann")
    assert {(change.action, change.id) for change in changes} == {
        ("add", "queue:failed"), ("add", "queue:orders"), ("change", "queue:orders"),
        ("add", "route:topic:prices→queue:orders"), ("add", "periodic:reminders"), ("skip", "key:shop"),
    }  # fmt: skip
    assert export_definitions() == exported | {"api_keys": {}}
    orders = Queue.objects.get(name="orders")
    assert (orders.max_attempts, orders.retry_backoff, orders.max_length) == (7, timedelta(seconds=2.5), 10)
    assert orders.dead_letter_queue is not None
    assert PeriodicJob.objects.get().next_run_at is not None


def test_a_second_import_changes_nothing() -> None:
    make_everything()
    assert import_definitions(export_definitions(), "ann") == []


def test_every_policy_field_of_a_queue_goes_out() -> None:
    make_everything()
    assert set(export_definitions()["queues"]["orders"]) == set(POLICY) >= {
        "paused", "retention", "audited", "single_active_consumer",
    }  # fmt: skip


def test_no_secret_and_no_system_queue_goes_out() -> None:
    make_everything()
    text = json.dumps(export_definitions())
    assert ApiKey.objects.get().digest not in text
    assert "0123456789abcdef" not in text
    assert "_system" not in text


def test_differing_objects_are_changed_and_unnamed_ones_stay() -> None:
    make_everything()
    definitions = {
        "version": 1,
        "queues": {"orders": {"max_attempts": 3, "ack_timeout": None}},
        "periodic_jobs": {"reminders": {"enabled": False}},
        "api_keys": {"shop": {"publish": ["*"]}},
    }
    changes = {change.id: change for change in import_definitions(definitions, "ann")}
    assert changes["queue:orders"].detail == "max_attempts 7 → 3, ack_timeout 60.0 → None"
    orders, key = Queue.objects.get(name="orders"), ApiKey.objects.get()
    assert (orders.max_attempts, orders.ack_timeout, orders.max_length) == (3, None, 10)
    assert (key.publish, key.protocols) == (["*"], ["blipmq"])
    assert PeriodicJob.objects.get().next_run_at is None


def test_a_dry_run_says_the_same_and_changes_nothing() -> None:
    make_everything()
    exported = export_definitions()
    remove_everything()
    would_be = import_definitions(exported, "ann", dry_run=True)
    assert not Queue.objects.filter(name="orders").exists()
    assert import_definitions(exported, "ann") == would_be


@pytest.mark.parametrize(
    ("definitions", "reason"),
    [
        ([], '"version": 1'),
        ({"version": 2}, '"version": 1'),
        ({"version": 1, "topics": {}}, "no section 'topics'"),
        ({"version": 1, "queues": []}, "queues: it must be an object"),
        ({"version": 1, "queues": {"a": {"colour": 1}}}, "there is no 'colour'"),
        ({"version": 1, "queues": {"a": 1}}, "'a': it must be an object"),
        ({"version": 1, "queues": {"a": {"max_attempts": "many"}}}, "'a': max_attempts: .*integer"),
        ({"version": 1, "queues": {"a": {"retry_backoff": -1}}}, "'a': .*retry_backoff"),
        ({"version": 1, "queues": {"a": {"retry_backoff": 1e300}}}, "'a': retry_backoff"),
        ({"version": 1, "queues": {"a": {"retention": "all"}}}, "'a': .*retention"),
        ({"version": 1, "queues": {"_system": {}}}, "_system"),
        ({"version": 1, "queues": {"a\0": {}}}, "NUL"),
        ({"version": 1, "queues": {"a": {"dead_letter_queue": "b"}}}, "There is no such queue: 'b'"),
        ({"version": 1, "queues": {"a": {"dead_letter_queue": "a"}}}, "come back|own"),
        ({"version": 1, "routes": ["a"]}, "no pair"),
        ({"version": 1, "routes": [["a", "b"], ["b", "a"]]}, "loop"),
        ({"version": 1, "routes": [["topic:\ud800", "b"]]}, "routes"),
        ({"version": 1, "periodic_jobs": {"a": {}}}, "cron: it is missing"),
        ({"version": 1, "periodic_jobs": {"a": {"cron": "* * * * *", "queue": "x"}}}, "no such queue"),
        ({"version": 1, "api_keys": {"shop": {"protocols": ["smtp"]}}}, "'smtp' is no protocol"),
        ({"version": 1, "api_keys": {"shop": {"publish": "*"}}}, "publish"),
        ({"version": 1, "api_keys": {"\0": {}}}, "NUL"),
    ],
)
def test_definitions_that_cannot_be_are_refused_with_the_place_and_nothing_is_changed(
    definitions: Any, reason: str
) -> None:
    make_everything()
    before = export_definitions()
    with pytest.raises(InvalidDefinitions, match=reason):
        import_definitions({"version": 1, "queues": {"new": {}}} | definitions if definitions else definitions, "ann")
    assert export_definitions() == before


def test_the_command_writes_a_file_and_brings_it_in(shell: Shell, tmp_path: Path) -> None:
    make_everything()
    file = tmp_path / "definitions.json"
    assert shell("definitions", "export", str(file)).status == 0
    assert json.loads(file.read_text()) == shell("definitions", "export").json == export_definitions()
    Queue.objects.get(name="orders").delete()
    tried = shell("definitions", "import", str(file), "--dry-run")
    assert (tried.status, "would be made" in tried.err) == (0, True)
    assert not Queue.objects.filter(name="orders").exists()
    done = shell("definitions", "import", "-", "--json", stdin=file.read_bytes())
    assert done.status == 0
    assert {"action": "add", "id": "queue:orders", "detail": ""} in done.json
    assert Queue.objects.filter(name="orders").exists()


@pytest.mark.parametrize(("text", "status"), [(b"{", 2), (b"[]", 1), (b"\xff", 2), (b"[" * 100_000, 2)])
def test_the_command_refuses_what_is_no_definition(shell: Shell, text: bytes, status: int) -> None:
    refused = shell("definitions", "import", "-", stdin=text)
    assert (refused.status, "Traceback" in refused.err) == (status, False)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_the_command_reads_every_encoding_of_json(shell: Shell, encoding: str) -> None:
    given = '{"version": 1, "queues": {"größe": {}}}'.encode(encoding)
    assert shell("definitions", "import", "-", stdin=given).status == 0
    assert Queue.objects.get().name == "größe"
