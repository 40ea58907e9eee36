"""Logging in while a synchronous standby is away."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from django.db import DatabaseError, connection
from django.http import HttpRequest, HttpResponseBase
from django.urls import reverse


class LogInMiddleware:
    """What a log-in or a log-out stores waits for no standby: operators come in to see what is wrong. A session that a
    failover loses is one more log-in."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if request.method != "POST" or request.path not in (reverse("admin:login"), reverse("admin:logout")):
            return self.get_response(request)
        _set("set synchronous_commit to local")
        try:
            return self.get_response(request)
        finally:
            _set("reset synchronous_commit")


def _set(statement: str) -> None:
    with suppress(DatabaseError), connection.cursor() as cursor:  # without a database the page says so
        cursor.execute(statement)
