"""The life of a message on its page, and where that page is when the message has left the store."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

from django.db import OperationalError
from django.http import HttpResponseRedirect
from django.urls import reverse
from django.utils.safestring import SafeString

from queues.admin.worker import html_table
from queues.formats.times import clock, zone
from queues.models import ArchivedMessage, Message
from queues.operations.life import is_archived, life_of

#: The id of a message in an address: 64 bits with a sign.
ID: Final = re.compile(r"-?[0-9]{1,18}|-?[0-8][0-9]{18}", re.ASCII)


def life_shown(message: Message | ArchivedMessage) -> SafeString:
    """The life of a message, as a table in the order of time."""
    steps = life_of(message)
    rows = ((_time(step.at), step.event, step.who or "-", step.told, step.source) for step in steps)
    return html_table((f"When ({zone()})", "What", "Who", "Detail", "Known from"), rows)


def _time(at: datetime | None) -> str:
    return clock(at, "%Y-%m-%d %H:%M:%S.%f")[:-3] if at else "-"


def archived_page(id: str) -> HttpResponseRedirect | None:
    """The page of a finished message; None when the archive has none, or is too large to be searched in time."""
    try:
        found = ID.fullmatch(id) is not None and is_archived(int(id))
    except OperationalError:
        return None
    return HttpResponseRedirect(reverse("admin:queues_archivedmessage_change", args=[int(id)])) if found else None
