"""The page of charts that is the list of a read-only model."""

from __future__ import annotations

import csv
from abc import abstractmethod
from typing import Any, ClassVar

from django.http import Http404, HttpRequest, HttpResponse, JsonResponse

from queues.admin.audited import AbstractAdmin, ReadOnlyAdmin, demand, render_page
from queues.admin.charts import Charts


class ChartPageAdmin(ReadOnlyAdmin, metaclass=AbstractAdmin):
    """Read only; its list is a page of charts. With `?format=json` it is their figures, with `?format=csv&chart=ID`
    those of one."""

    title: ClassVar[str]
    #: Its name in `admin/queues`.
    template: ClassVar[str]

    @abstractmethod
    def charts(self, request: HttpRequest) -> dict[str, Any]:
        """The page's context: its choices and, as `charts`, its charts."""

    def may_read(self, request: HttpRequest) -> bool:
        """Whether the user may have the figures, which other pages show too."""
        return self.has_view_permission(request)

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        form = request.GET.get("format")
        demand(self.has_view_permission(request) if form is None else self.may_read(request))
        context = self.charts(request)
        if form is None:
            return render_page(self, request, self.template, self.title, **context, **(extra_context or {}))
        charts: Charts = context["charts"]
        return _csv(charts, request.GET.get("chart", "")) if form == "csv" else JsonResponse(charts.as_json())


def _csv(charts: Charts, id: str) -> HttpResponse:
    """A chart's figures as a file."""
    chart = next((one for one in charts.charts if one.id == id), None)
    if chart is None:
        raise Http404
    headers = {"Content-Disposition": f'attachment; filename="{id}.csv"'}
    answer = HttpResponse(content_type="text/csv; charset=utf-8", headers=headers)
    csv.writer(answer).writerows(chart.csv())
    return answer
