"""Rows that have a queue each, with the counts of its messages."""

from __future__ import annotations

from typing import Any

from django.urls import reverse
from django.utils.html import format_html

from queues.admin.recorded import RecordedAdmin
from queues.counts import QueueCounts, many_counts


def messages_link(queue: int, text: object, state: int | None = None) -> str:
    """A link to a queue's messages."""
    address = f"{reverse('admin:queues_message_changelist')}?queue={queue}"
    return format_html('<a href="{}">{}</a>', address if state is None else f"{address}&state={state}", text)


class CountedRows(RecordedAdmin):
    """The counts of the rows of a page are fetched in one query."""

    def queue_of(self, row: Any) -> int:
        """The id of the queue of a row."""
        return int(row.queue_id)

    def counts(self, row: Any) -> QueueCounts:
        """The counts that the page has fetched, or those of an object shown alone."""
        if not hasattr(row, "counts"):
            self.prepare_rows([row])
        counts: QueueCounts = row.counts
        return counts

    def prepare_rows(self, rows: list[Any]) -> None:
        counts = many_counts(map(self.queue_of, rows))
        for row in rows:
            row.counts = counts.get(self.queue_of(row), QueueCounts())

    def ready(self, row: Any) -> str:
        return messages_link(self.queue_of(row), f"{self.counts(row).ready:,}", 0)

    def leased(self, row: Any) -> str:
        return f"{self.counts(row).leased:,}"

    def dead(self, row: Any) -> str:
        return messages_link(self.queue_of(row), f"{self.counts(row).dead:,}", 3)
