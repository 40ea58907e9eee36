"""The page of charts that is the list of a read-only model."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from django.http import HttpRequest, HttpResponse

from queues.admin.recorded import AbstractAdmin, ReadOnlyAdmin, demand, render_page


class ChartPageAdmin(ReadOnlyAdmin, metaclass=AbstractAdmin):
    """Read only; its list is a page of charts."""

    title: ClassVar[str]
    #: Its name in `admin/queues`.
    template: ClassVar[str]

    @abstractmethod
    def charts(self, request: HttpRequest) -> dict[str, Any]:
        """The page's context: its choices and its charts."""

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        demand(self.has_view_permission(request))
        return render_page(self, request, self.template, self.title, **self.charts(request), **(extra_context or {}))
