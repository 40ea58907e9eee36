"""Log lines on which clients have no hold: without tracebacks for what is refused, each on one line."""

from __future__ import annotations

import logging
import re

#: Ends of lines, and what moves a terminal's cursor or turns the direction of text.
_CONTROLS = re.compile("[\0-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


class OneLine(logging.Formatter):
    """Escapes control characters in messages: names and errors in them come from clients, who could forge lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line, before a traceback is added."""
        record.message = _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], record.message)
        return super().formatMessage(record)


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
