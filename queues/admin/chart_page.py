"""The page of charts that is the list of a read-only model."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from queues.admin.recorded import AbstractAdmin, ReadOnlyAdmin


class ChartPageAdmin(ReadOnlyAdmin, metaclass=AbstractAdmin):
    """Read only; its list is a page of charts."""

    title: ClassVar[str]
    template: ClassVar[str]

    @abstractmethod
    def charts(self, request: HttpRequest) -> dict[str, Any]:
        """The page's context: its choices and its charts."""

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        context = {
            **self.admin_site.each_context(request), "title": self.title, "opts": self.opts, **self.charts(request),
            **(extra_context or {}),
        }  # fmt: skip
        return TemplateResponse(request, self.template, context)
