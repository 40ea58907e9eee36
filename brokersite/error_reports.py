"""Django's debug pages without the password in the database's address."""

from __future__ import annotations

import re

from django.views.debug import SafeExceptionReporterFilter


class ErrorReportFilter(SafeExceptionReporterFilter):
    """Hides what Django hides, and settings that are addresses with a password."""

    hidden_settings = re.compile(f"{SafeExceptionReporterFilter.hidden_settings.pattern}|DATABASE_URL", re.IGNORECASE)
