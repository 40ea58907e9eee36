"""The answer to a request that changes something while a synchronous standby is away."""

from __future__ import annotations

from collections.abc import Callable

from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase

from queues.database.commit_watch import UNCONFIRMED, CommitWatch

READING = ("GET", "HEAD", "OPTIONS")


class StandbyAwayMiddleware:
    """Middleware: a request waits for a synchronous standby for twice BROKER_STALL_TIMEOUT at most; the next page
    says so."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if request.method in READING:
            return self.get_response(request)
        with CommitWatch(settings.BROKER_STALL_TIMEOUT) as watch:
            answer = self.get_response(request)
        if watch.waited:
            messages.warning(request, f"The change {UNCONFIRMED}: a failover would take it back.", fail_silently=True)
        return answer
