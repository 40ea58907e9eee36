"""The rows of one audit chain, newest first; of one id in order. Read only, and no page reads a whole chain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.db import DEFAULT_DB_ALIAS
from django.db.models import ExpressionWrapper, F, IntegerField, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.safestring import SafeString

from queues.admin.audit_links import CHAIN, SEARCH, rows_address
from queues.admin.columns import anchor, column, short_hash
from queues.admin.filters import OfferedFilter, number
from queues.admin.keyset import AFTER, KeysetAdmin, KeysetChangeList
from queues.audit.chains import PEERBUS
from queues.audit.listing import rows_of
from queues.formats.times import clock
from queues.models import AuditChain, AuditRow
from queues.store.queries import query

#: Rows that one page looks through for what no index leads to: an event, a sender, a recipient.
WINDOW = 100_000
#: Rows among which the events to choose from are found.
NEWEST = 10_000
#: Prefixes of a search, and the column that equals the rest.
FIELDS = {"id": "record_id", "from": "sender", "to": "recipient"}


class ColumnSearch(NamedTuple):
    """A search for a column's value."""

    field: str
    value: str

    @property
    def is_id(self) -> bool:
        """Whether an index leads to it."""
        return self.field == "record_id"

    @classmethod
    def parse(cls, text: str) -> ColumnSearch | None:
        """From `id:VALUE`, `from:VALUE`, `to:VALUE`, or just an id; None when nothing is looked for."""
        word, colon, value = text.partition(":")
        if colon and word in FIELDS:
            return cls(FIELDS[word], value)
        return cls("record_id", text) if text else None


def chain_id(request: HttpRequest) -> int:
    """The chain that an address line names; one that does not exist if it names none."""
    return number(request.GET.get(CHAIN))


class ChainFilter(OfferedFilter):
    """The chain whose rows are shown: always one."""

    title = "chain"
    parameter_name = CHAIN
    model = AuditChain

    def choices(self, changelist: Any) -> Iterator[Any]:
        _, *chains = super().choices(changelist)
        yield from chains

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if (search := ColumnSearch.parse(request.GET.get(SEARCH, ""))) is None or not search.is_id:
            return queryset.filter(chain_id=chain_id(request))
        # Compared with a sum, as it is sorted by one: only the index of the ids is left to the planner.
        of_chain = ExpressionWrapper(F("chain_id") + 0, output_field=IntegerField())
        found: QuerySet[Any] = queryset.alias(of_chain=of_chain).filter(of_chain=chain_id(request))
        return found


class EventFilter(admin.SimpleListFilter):
    """Rows of one event; those to choose from are the chain's recent ones."""

    title = "event"
    parameter_name = "event"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        rows = query("audit_recent_events", DEFAULT_DB_ALIAS, chain=chain_id(request), newest=NEWEST)
        events = {event for (event,) in rows} | {self.value() or ""} - {""}
        return [(event, event) for event in sorted(events)]

    def has_output(self) -> bool:
        return True

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(event=self.value()) if self.value() else queryset


class RowList(KeysetChangeList):
    """Pages by seq. What no index leads to is looked for in a window of the chain, and then in the one before it."""

    chain = 0
    looked_at = ""

    @property
    def search(self) -> ColumnSearch | None:
        return ColumnSearch.parse(self.query)

    @property
    def by_id(self) -> bool:
        return self.search is not None and self.search.is_id

    @property
    def keyset(self) -> Sequence[str]:
        return ("seq",) if self.by_id else ("-seq",)

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:
        # By a sum, so that no plan walks the whole chain in order until it meets the id.
        return [(F("seq") + 0).asc()] if self.by_id else ["-seq"]

    def get_results(self, request: HttpRequest) -> None:
        self.chain = chain_id(request)
        if self.after and number(self.after, 18) < 0:
            raise IncorrectLookupParameters(self.after)
        if not self.by_id and (self.search is not None or EventFilter.parameter_name in request.GET):
            self._look(request)
        else:
            super().get_results(request)

    def _look(self, request: HttpRequest) -> None:
        seqs = AuditRow.objects.filter(chain_id=self.chain).values_list("seq", flat=True)
        first = seqs.order_by("seq").first() or 0
        end = number(self.after, 18) if self.after else (seqs.order_by("-seq").first() or 0) + 1
        low = max(first, end - WINDOW)
        self.queryset = self.queryset.filter(seq__gte=low, seq__lt=end)
        super().get_results(request)
        if self.next_page:
            low = self.result_list[-1].seq
        elif low > first:
            self.next_page = self.get_query_string({AFTER: str(low)})
        self.looked_at = f"seq {low:,} to {end - 1:,}"


@admin.register(AuditRow)
class AuditRowAdmin(KeysetAdmin):
    keyset = ("-seq",)
    list_display = ("number", "moment", "event", "record", "sender_shown", "recipient_shown", "hash_shown")
    list_display_links = None
    list_filter = (ChainFilter, EventFilter)
    list_per_page = 50
    search_fields = ("record_id",)
    search_help_text = "An id; from:NAME or to:NAME. All of them exactly."
    change_list_template = "admin/queues/audit_rows_change_list.html"

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return RowList

    def get_model_perms(self, request: HttpRequest) -> dict[str, bool]:
        return {}  # one comes here from a chain or a message, not from the index

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> None:
        return None  # a seq alone is no row, and the list shows all there is of one

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[AuditRow], search_term: str
    ) -> tuple[QuerySet[AuditRow], bool]:
        search = ColumnSearch.parse(search_term)
        if search is None:
            return queryset, False
        if search.is_id:
            return rows_of(queryset, search.value), False
        return queryset.filter(**{search.field: search.value}), False

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        if CHAIN not in request.GET:
            chains = AuditChain.objects.filter(name=PEERBUS) or AuditChain.objects.all()[:1]
            for chain in chains:
                asked = request.GET.copy()
                asked[CHAIN] = str(chain.pk)
                return HttpResponseRedirect(f"{request.path}?{asked.urlencode()}")
        return super().changelist_view(request, extra_context)

    number = column("seq", lambda row: f"{row.seq:,}")
    moment = column("at", lambda row: clock(row.at, "%Y-%m-%d %H:%M:%S.%f")[:-3])
    record = column("id", lambda row: _search_link(row, "id", row.record_id))
    sender_shown = column("from", lambda row: _search_link(row, "from", row.sender))
    recipient_shown = column("to", lambda row: _search_link(row, "to", row.recipient))
    hash_shown = column("hash", lambda row: short_hash(bytes(row.hash).hex()))


def _search_link(row: AuditRow, word: str, value: str) -> SafeString:
    return anchor(rows_address(row.chain_id, f"{word}:{value}") if value else None, value or "-")
