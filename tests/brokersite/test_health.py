"""/healthz, /readyz and /metrics: what a probe sees when all is well, and when it is not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.test import AsyncClient, Client

from hydra.models import Node as HydraNode
from queues.api import publish, publish_many
from queues.models import DeadLetterTally, Queue
from queues.monitoring import health
from queues.operations.queues import create_queue
from queues.operations.routes import add_route


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that answers does so in time, however busy the machine is."""
    monkeypatch.setattr(health, "READY_TIMEOUT", 60.0)
    monkeypatch.setattr(health, "_looked", None)


@pytest.fixture
def database_elsewhere() -> Iterator[dict[str, Any]]:
    """The settings of Django's connection, to point it somewhere else; put back at the end."""
    before = dict(connection.settings_dict)
    yield connection.settings_dict
    connection.settings_dict.update(before)


async def test_healthz_answers_without_a_database(async_client: AsyncClient) -> None:
    response = await async_client.get("/healthz")
    assert (response.status_code, response.json()) == (200, {"status": "ok"})


@pytest.mark.django_db
async def test_readyz_is_ready_when_the_database_has_every_migration(async_client: AsyncClient) -> None:
    response = await async_client.get("/readyz")
    assert (response.status_code, response.json()) == (200, {"status": "ready", "reasons": []})


@pytest.mark.django_db
async def test_readyz_names_a_migration_that_is_not_applied(
    async_client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_disk = health.migrations_on_disk() | {("queues", "9999_later")}
    monkeypatch.setattr(health, "migrations_on_disk", lambda: on_disk)
    response = await async_client.get("/readyz")
    assert response.status_code == 503
    assert response.json()["reasons"] == ["Migrations are not applied: queues.9999_later. Run `manage.py migrate`."]


@pytest.mark.django_db
async def test_readyz_says_that_the_database_has_no_tables(
    async_client: AsyncClient, database_elsewhere: dict[str, Any]
) -> None:
    database_elsewhere["NAME"] = "template1"
    response = await async_client.get("/readyz")
    assert response.status_code == 503
    assert response.json()["reasons"] == ["The database has no tables yet: run `manage.py migrate`."]


async def test_readyz_says_that_the_database_refuses(
    async_client: AsyncClient,
    database_elsewhere: dict[str, Any],
    unused_tcp_port: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    database_elsewhere.update(HOST="127.0.0.1", PORT=str(unused_tcp_port))
    response = await async_client.get("/readyz")
    assert response.status_code == 503
    assert response.json()["reasons"] == ["The database cannot be reached; the log says why."]
    assert f"port {unused_tcp_port} failed" in caplog.text


async def test_readyz_does_not_wait_for_a_database_that_hangs(
    async_client: AsyncClient, database_elsewhere: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    monkeypatch.setattr(health, "READY_TIMEOUT", 0.2)
    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as server:
        database_elsewhere.update(HOST="127.0.0.1", PORT=str(server.sockets[0].getsockname()[1]))
        response = await async_client.get("/readyz")
    assert response.status_code == 503
    assert response.json()["reasons"] == ["The database has not answered within 0.2 s."]


async def test_a_flood_of_probes_asks_the_database_once(
    async_client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    async def look() -> list[str]:
        nonlocal looks
        looks += 1
        await asyncio.sleep(0)
        return ["It is away."]

    monkeypatch.setattr(health, "READY_AGE", 3600.0)
    monkeypatch.setattr(health, "_look", look)
    answers = await asyncio.gather(*(async_client.get("/readyz") for _ in range(20)))
    answers.append(await async_client.get("/readyz"))
    assert {answer.status_code for answer in answers} == {503}
    assert looks == 1
    monkeypatch.setattr(health, "READY_AGE", 0.0)
    await async_client.get("/readyz")
    assert looks == 2


async def test_metrics_are_in_prometheus_text_format(async_client: AsyncClient) -> None:
    response = await async_client.get("/metrics")
    assert response.status_code == 200
    assert response["Content-Type"].startswith("text/plain; version=")
    assert "# TYPE process_resident_memory_bytes gauge" in response.content.decode()


def test_the_admin_has_its_style_sheet_with_debug_off(client: Client) -> None:
    response = client.get("/static/admin/css/base.css")
    assert response.status_code == 200
    assert response["Content-Type"].startswith("text/css")
    assert b"--primary" in response.getvalue()


@pytest.mark.django_db(transaction=True)
def test_metrics_have_the_faults_and_lost_lines_of_hydras_nodes(client: Client) -> None:
    HydraNode.objects.create(name="alpha", voter="0" * 16, faults=7, lines_refused=2, lines_lost=3)
    text = client.get("/metrics").content.decode()
    assert 'fivewire_hydra_faults_total{node="alpha"} 7.0' in text
    assert 'fivewire_hydra_running{node="alpha"} 0.0' in text
    assert 'fivewire_hydra_lines_ended_total{how="refused",node="alpha"} 2.0' in text
    assert 'fivewire_hydra_lines_ended_total{how="lost",node="alpha"} 3.0' in text


@pytest.mark.django_db(transaction=True)
def test_metrics_of_queues_are_given_on_request(client: Client) -> None:
    for name in ("orders.eu", "orders.us", "mail"):
        create_queue(name)
    Queue.objects.create(name="_internal")
    publish("orders.eu", b"1")
    assert "fivewire_queue" not in client.get("/metrics").content.decode()
    text = client.get("/metrics", {"queues": "orders.*"}).content.decode()
    assert 'fivewire_queue_messages{queue="orders.eu",state="ready"} 1.0' in text
    assert 'fivewire_queue_published_total{queue="orders.us"} 0.0' in text
    assert "mail" not in text
    assert 'queue="_internal"' in client.get("/metrics", {"queues": "_*"}).content.decode()
    assert 'queue="_internal"' not in client.get("/metrics", {"queues": "*"}).content.decode()


@pytest.mark.django_db(transaction=True)
def test_metrics_of_queues_have_the_dead_letters_that_went_elsewhere(client: Client) -> None:
    graves = create_queue("graves")
    orders = create_queue("orders", dead_letter_queue=graves)
    DeadLetterTally.objects.create(queue=orders, target=graves, carried=3)
    moved = 'fivewire_queue_dead_letters_moved_total{queue="orders",target="graves"} 3.0'
    assert moved in client.get("/metrics", {"queues": "ord*"}).content.decode()
    assert "dead_letters_moved_total{" not in client.get("/metrics", {"queues": "grav*"}).content.decode()


@pytest.mark.django_db(transaction=True)
def test_metrics_of_routes_are_given_on_request(client: Client) -> None:
    create_queue("orders.eu")
    for ends in (("topic:prices", "orders.eu"), ("mail", "topic:copies")):
        add_route(*ends)
    publish_many("topic:prices", [b"1", b"2"])
    assert "fivewire_route" not in client.get("/metrics", {"queues": "*"}).content.decode()
    for glob in ("queue:orders.*", "topic:prices"):
        text = client.get("/metrics", {"routes": glob}).content.decode()
        assert 'fivewire_route_carried_total{source="topic:prices",target="queue:orders.eu"} 2.0' in text
        assert "mail" not in text
    assert 'source="queue:mail",target="topic:copies"} 0.0' in client.get("/metrics", {"routes": "*"}).content.decode()


async def test_metrics_are_there_without_the_database_but_those_of_hydras_nodes(
    async_client: AsyncClient, database_elsewhere: dict[str, Any], unused_tcp_port: int
) -> None:
    database_elsewhere.update(HOST="127.0.0.1", PORT=str(unused_tcp_port))
    text = (await async_client.get("/metrics")).content.decode()
    assert "python_info" in text
    assert "fivewire_hydra_faults" not in text
