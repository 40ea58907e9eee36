"""Values in a request that no column takes: NUL, half of a surrogate pair, a time outside the calendar, a wrong type.

Forms refuse them field by field. Addresses of lists and the rows chosen for an action reach the database through
lookups of Django's own, which raise; the answer is then 400, not 500.
"""

from __future__ import annotations

import logging
from types import TracebackType

from django.core.exceptions import ValidationError
from django.db import DataError, IntegrityError, ProgrammingError
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest
from django.utils.deprecation import MiddlewareMixin

logger = logging.getLogger(__name__)

#: Errors that say that a value is at fault; a form may look for one that another request stores meanwhile.
REFUSALS = (DataError, IntegrityError, UnicodeEncodeError, ValidationError)
#: Errors that say so where lookups are made into SQL, and only there.
IN_LOOKUPS = (ValueError, TypeError, IndexError, OverflowError, ProgrammingError)
#: The packages whose code makes them.
LOOKUPS = ("django.db.", "django.forms.", "django.contrib.admin.views.main", "psycopg", "psycopg_binary")


class InvalidValuesMiddleware(MiddlewareMixin):
    """Middleware: answers 400 in the admin to a request with a value that the database cannot take."""

    async_capable = False

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        """The answer, or None for any other error."""
        match = request.resolver_match
        if match is None or match.app_name != "admin" or not is_refusal(exception):
            return None
        logger.warning("a request for %s has an invalid value: %s", match.view_name, type(exception).__name__)
        return HttpResponseBadRequest("The request has a value that cannot be stored or looked for.")


def is_refusal(exception: Exception) -> bool:
    """Whether a value was refused: by the database, or by the code that makes its queries."""
    if isinstance(exception, REFUSALS):
        return True
    return isinstance(exception, IN_LOOKUPS) and _raised_in(exception.__traceback__).startswith(LOOKUPS)


def _raised_in(trace: TracebackType | None) -> str:
    """The module whose code raised."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else str(trace.tb_frame.f_globals.get("__name__", ""))
