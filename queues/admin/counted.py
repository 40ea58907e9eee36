"""Rows that have a queue each, with the counts of its messages, which go with them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from django.contrib import admin, messages
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html

from queues.admin.audited import AbstractAdmin, AuditedAdmin, operator
from queues.errors import BrokerError
from queues.store.counts import QueueCounts, many_counts


def messages_link(queue: int, text: object, state: int | None = None) -> str:
    """A link to a queue's messages."""
    address = f"{reverse('admin:queues_message_changelist')}?queue={queue}"
    return format_html('<a href="{}">{}</a>', address if state is None else f"{address}&state={state}", text)


class CountedRows(AuditedAdmin, metaclass=AbstractAdmin):
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

    @admin.display(description="unacknowledged")
    def leased(self, row: Any) -> str:
        return f"{self.counts(row).leased:,}"

    def dead(self, row: Any) -> str:
        return messages_link(self.queue_of(row), f"{self.counts(row).dead:,}", 3)

    # Deletion: outside a transaction.

    @abstractmethod
    def delete_all_of(self, row: Any, by: str) -> int:
        """Delete for this operator; returns the number of messages that went too."""

    def held_by(self, row: Any) -> str:
        """What goes with a row, in words."""
        return f"{self.counts(row).held:,} messages"

    def lines_of(self, request: HttpRequest, objects: Sequence[Any]) -> list[str]:
        CountedRows.prepare_rows(self, list(objects))
        return [f"{obj}: {self.held_by(obj)}" for obj in objects]

    def delete_by(self, request: HttpRequest, obj: Any) -> None:
        name, by = str(obj), operator(request)
        gone = self.at_length(request, "delete", obj, self.held_by(obj), lambda: self.delete_all_of(obj, by))
        if gone is not None:
            self.log_deletions(request, [obj])  # type: ignore[arg-type]
            self.message_user(request, f"Deleted {name} with {gone:,} messages.", messages.SUCCESS)

    def at_length(
        self, request: HttpRequest, event: str, obj: Any, detail: str, do: Callable[[], int]
    ) -> int | None:
        """Do what takes several transactions. It is recorded before it begins, and when it is refused: then the user is
        told, and None returned."""
        self.record_action(request, event, obj, detail)
        try:
            return do()
        except BrokerError as error:
            self.record_action(request, "failed", obj, f"{event}: {error}")
            self.message_user(request, f"{obj}: {error}", messages.ERROR)
            return None
