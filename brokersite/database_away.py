"""The answer to a request during which the database goes, or that finds none: 503, to be tried again, not 500."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from django.db import InterfaceError, OperationalError, ProgrammingError, connection
from django.http import HttpRequest, HttpResponse
from django.utils.deprecation import MiddlewareMixin

from queues.engine.api import Fault, fault_of, told

#: Seconds after which a client may try again.
RETRY_AFTER: Final = 2


class DatabaseAwayMiddleware(MiddlewareMixin):
    """Middleware: answers 503 when a view has lost the database, or the server refuses everything for now."""

    async_capable = False

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        """The answer, or None for any other error."""
        cause = exception.__cause__
        if not isinstance(exception, OperationalError | InterfaceError | ProgrammingError) or cause is None:
            return None
        if fault_of(cause, connection.connection) not in (Fault.LOST, Fault.REFUSED):
            return None
        text = f"The page cannot be shown: {told(cause)}. Try again in a moment."
        return HttpResponse(
            text, "text/plain", HTTPStatus.SERVICE_UNAVAILABLE, headers={"Retry-After": str(RETRY_AFTER)}
        )
