"""Bulk operations: what was asked for, how far it is, and a way to cancel. Read only beyond that."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse

from queues.admin.audit_links import operators_address
from queues.admin.audited import demand, object_page, operator
from queues.admin.columns import column
from queues.admin.find import may_operate
from queues.admin.keyset import KeysetAdmin
from queues.admin.reasons import failures
from queues.models import BulkOperation, BulkState
from queues.operations import bulk


@admin.register(BulkOperation)
class BulkOperationAdmin(KeysetAdmin):
    keyset = ("-id",)
    list_display = ("id", "action", "what", "by", "state", "done", "skipped", "expected", "created_at", "ended_at")
    list_per_page = 50
    fields = (
        "action", "what", "by", "state", "progress", "done", "skipped", "expected", "looked", "error", "created_at",
        "ended_at",
    )  # fmt: skip
    change_form_template = "admin/queues/bulk_change_form.html"
    pages = {"cancel": "<int:id>/cancel/"}

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Viewers of messages may view bulk operations on them."""
        return request.user.has_perm("queues.view_message")

    def list_context(self, request: HttpRequest) -> dict[str, Any]:
        return {"failures": failures(BulkOperation.objects.filter(state=BulkState.FAILED))}

    def object_context(self, request: HttpRequest, object_id: str) -> dict[str, Any]:
        if (operation := self.get_object(request, object_id)) is None:
            return {}
        if running := operation.state == BulkState.RUNNING:
            bulk.local_runner.wake()  # also after a restart of the site, where no listener goes on with it
        return {
            "running": running, "may_cancel": running and may_operate(request, operation.action),
            "audit": operators_address(operation),
            "progress": f"{operation.done + operation.skipped:,} of {operation.expected or 0:,}",
        }  # fmt: skip

    @object_page("view")
    def cancel_view(self, request: HttpRequest, operation: BulkOperation) -> HttpResponse:
        """End an operation after its step under way."""
        demand(request.method == "POST" and may_operate(request, operation.action))
        if bulk.cancel(operation.pk, operator(request)):
            self.message_user(request, "Cancelled. What was done stays done.", messages.SUCCESS)
        else:
            self.message_user(request, "It has ended already.", messages.WARNING)
        return HttpResponseRedirect(reverse("admin:queues_bulkoperation_change", args=[operation.pk]))

    what = column("what", bulk.described)

    def progress(self, operation: BulkOperation) -> str:
        if not operation.expected:
            return f"{operation.done + operation.skipped:,}"
        share = min(1.0, (operation.done + operation.skipped) / operation.expected)
        return f"{share:.0%}" if operation.state == BulkState.RUNNING else operation.get_state_display()
