"""The page of the queues' history."""

from __future__ import annotations

import csv
import re
import time
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.conf import settings
from django.core.management import call_command
from django.test import Client, override_settings
from django.utils import timezone
from pytest_django.fixtures import DjangoAssertNumQueries

from queues.audit.chains import seal
from queues.models import BulkOperation, DeadNode, QueueSample
from queues.operations import audit_log
from queues.store.samples import ALL_QUEUES, SPANS
from tests.queues.admin.test_admin import LOGIN, address, text_of, unprivileged
from tests.queues.admin.test_front import user_with
from tests.queues.store import make_queue

__all__ = ["unprivileged"]
pytestmark = pytest.mark.django_db


CSV = {"format": "csv", "chart": "depth"}


def sample(queue: int, **fields: int) -> datetime:
    values = dict.fromkeys(("ready", "leased", "delayed", "dead", "peak", "published", "settled", "died"), 0)
    at = timezone.now().replace(second=0, microsecond=0)
    QueueSample.objects.create(queue=queue, at=at, seconds=60, **values | fields)
    return at


@pytest.mark.parametrize("span", SPANS)
def test_the_history_of_a_queue_is_drawn(
    admin_client: Client, django_assert_num_queries: DjangoAssertNumQueries, span: str
) -> None:
    queue = make_queue().pk
    sample(queue, published=120, settled=60, completed=54, ready=77, died=3)
    sample(ALL_QUEUES, published=600)
    with django_assert_num_queries(LOGIN + 3):
        text = admin_client.get(address("queuesample"), {"queue": "orders", "span": span}).content.decode()
    told = {"in": "2/s", "acknowledged": "0.9/s", "left otherwise": "0.1/s", "ready": "77", "dead letters": "3"}
    for name, most in told.items():
        assert re.search(rf"\b{name} is highest at [\d-]+ [\d:]+ with {most}", text), name
    assert "10/s" in text_of(admin_client.get(address("queuesample")))


@pytest.mark.parametrize("span", SPANS)
def test_no_figure_is_one_of_the_future_and_machines_get_it_as_it_is(admin_client: Client, span: str) -> None:
    queue = make_queue().pk
    at = sample(queue, published=120, ready=1_234_567).timestamp()
    sample(ALL_QUEUES)
    with override_settings(LANGUAGE_CODE="de", USE_I18N=True, USE_THOUSAND_SEPARATOR=True):
        answer = admin_client.get(address("queuesample"), {"queue": "orders", "span": span, "format": "json"})
        table = admin_client.get(address("queuesample"), CSV | {"queue": "orders", "span": span})
    depth = answer.json()["charts"]["depth"]
    assert depth["range"][1] == depth["times"][-1] <= time.time()
    assert depth["times"] == sorted(set(depth["times"]))
    assert len(depth["times"]) == len(depth["rows"]) == SPANS[span].places
    place = next(n for n, end in enumerate(depth["times"]) if end >= at)
    assert depth["values"][0][place] == 1_234_567
    assert depth["rows"][place][1] == "1.234.567"
    lines = list(csv.reader(table.content.decode().splitlines()))
    assert lines[0] == ["time", "ready", "unacknowledged", "delayed", "dead letters"]
    assert lines[1 + place][1] == "1234567"
    assert "attachment" in table["Content-Disposition"]
    assert "no-store" in answer["Cache-Control"]
    assert "no-store" in table["Cache-Control"]


def test_times_are_those_of_the_zone_of_the_page(admin_client: Client) -> None:
    sample(ALL_QUEUES, published=600)
    with override_settings(TIME_ZONE="Asia/Tokyo"):
        answer = admin_client.get(address("queuesample"), {"format": "json"})
        page = admin_client.get(address("queuesample")).content.decode()
    rates = answer.json()["charts"]["rates"]
    local = datetime.fromtimestamp(rates["times"][-1], ZoneInfo("Asia/Tokyo"))
    assert rates["rows"][-1][0] == f"{local:%Y-%m-%d %H:%M}"
    assert "Time (Asia/Tokyo)" in page


def test_what_operators_and_nodes_did_is_marked(admin_client: Client, client: Client) -> None:
    queue = make_queue()
    sample(ALL_QUEUES, published=600)
    for event, id in (("pause", "queue:orders"), ("purge", "queue:other"), ("rotate", "key:shop")):
        audit_log.record("ann", event, id)
    seal()
    BulkOperation.objects.create(action="move", criteria={"queue": "orders"}, target="more", by="bob", high=1)
    BulkOperation.objects.create(action="copy", criteria={"queue": "other"}, target="third", by="bob", high=1)
    DeadNode.objects.create(id=7, name="listener", host="web", pid=1, started_at=timezone.now())
    of_all = words_of(admin_client.get(address("queuesample"), {"format": "json"}))
    assert sorted(of_all) == [
        "copy other to third by bob", "move orders to more by bob", "node died listener on web",
        "pause queue:orders by ann", "purge queue:other by ann",
    ]  # fmt: skip
    of_one = words_of(admin_client.get(address("queuesample"), {"format": "json", "queue": queue.name}))
    assert sorted(of_one) == [one for one in sorted(of_all) if "other" not in one]
    client.force_login(user_with("view_queue"))
    assert words_of(client.get(address("queuesample"), {"format": "json"})) == [], "who may not see audit rows"


def words_of(answer: Any) -> list[str]:
    return [words for _, _, words in answer.json()["events"]]


def test_a_queue_that_does_not_exist_is_said_so(admin_client: Client) -> None:
    assert "There is no queue “nowhere”" in text_of(admin_client.get(address("queuesample"), {"queue": "nowhere"}))


def test_scripts_and_styles_are_found_by_the_names_that_collectstatic_gives_them(
    admin_client: Client, tmp_path: Path
) -> None:
    manifest = {"BACKEND": "django.contrib.staticfiles.storage.ManifestStaticFilesStorage"}
    with override_settings(STATIC_ROOT=tmp_path, STORAGES=settings.STORAGES | {"staticfiles": manifest}):
        call_command("collectstatic", interactive=False, verbosity=0)
        html = admin_client.get(address("queuesample")).content.decode()
    names = re.findall(r'(?:src|href)="/static/(queues/[^"]+)"', html)
    assert {re.sub(r"\.[0-9a-f]{12}\.", ".", Path(name).name) for name in names} >= {
        "charts.js", "uPlot.iife.min.js", "uPlot.min.css",
    }  # fmt: skip
    for name in names:
        assert re.search(r"\.[0-9a-f]{12}\.", name)
        assert (tmp_path / name).is_file()


def test_a_chart_that_does_not_exist_is_no_file(admin_client: Client) -> None:
    assert admin_client.get(address("queuesample"), CSV | {"chart": "nothing"}).status_code == 404
    assert admin_client.get(address("queuesample"), CSV | {"queue": "nowhere"}).status_code == 404


def test_the_history_needs_view_permission(unprivileged: Client, client: Client) -> None:
    for asked in ({}, {"format": "json"}, CSV):
        assert unprivileged.get(address("queuesample"), asked).status_code == 403
    client.force_login(user_with("view_queue"))  # whose pages have the same figures
    assert client.get(address("queuesample")).status_code == 403
    for asked in ({"format": "json"}, CSV):
        assert client.get(address("queuesample"), asked).status_code == 200
