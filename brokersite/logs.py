"""The log line of a request that was refused."""

from __future__ import annotations

import logging


class RefusalsWithoutTraceback(logging.Filter):
    """Takes the traceback out of records of answers below 500.

    Django logs one for a wrong host, a form with too many fields or a missing permission. It says where Django refuses
    and nothing of the request, and any client can have it written at will.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Always true."""
        if getattr(record, "status_code", 500) < 500:
            record.exc_info = record.exc_text = None
        return True
