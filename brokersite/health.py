"""The site's health and metrics: /healthz, /readyz, /metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psycopg
from channels.db import database_sync_to_async
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse, JsonResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from hydra.metrics import node_metrics
from queues.database.parameters import connection_parameters
from queues.monitoring.health import READY_TIMEOUT, log_once, readiness
from queues.monitoring.metrics import queue_metrics, route_metrics

#: Figures on request, by the parameter that asks for them.
BY_REQUEST = {"queues": queue_metrics, "routes": route_metrics}
#: Reading all queues is work: clients that ask at the same time wait for each other.
_one_at_a_time = asyncio.Lock()


async def healthz(request: HttpRequest) -> HttpResponse:
    """The process is alive and answers."""
    return JsonResponse({"status": "ok"})


async def readyz(request: HttpRequest) -> HttpResponse:
    """200 when the process is ready for work; else 503 with the reasons. What an operator should know is in `notes`."""
    answer = await readiness()
    return JsonResponse(answer.page, status=answer.status)


async def metrics(request: HttpRequest) -> HttpResponse:
    """The metrics of this process in Prometheus' text format; while the database answers, those of Hydra's nodes and,
    with ``?queues=GLOB`` and ``?routes=GLOB``, of queues and routes."""
    text = generate_latest() + await _hydra()
    for name, figures in BY_REQUEST.items():
        if pattern := request.GET.get(name):
            text += await _from_tables(figures, pattern)
    return HttpResponse(text, content_type=CONTENT_TYPE_LATEST)


async def _from_tables(figures: Callable[[str], bytes], pattern: str) -> bytes:
    async with _one_at_a_time:
        try:
            return await database_sync_to_async(figures)(pattern)
        except DatabaseError as error:
            log_once(" ".join(str(error).split()))
            return b""


async def _hydra() -> bytes:
    try:
        async with asyncio.timeout(READY_TIMEOUT):
            return await node_metrics(connection_parameters())
    except (TimeoutError, psycopg.Error) as error:
        log_once(" ".join(str(error).split()) or f"no answer within {READY_TIMEOUT:g} s")
        return b""
