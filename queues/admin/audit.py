"""The audit chains: how long each is, what vouches for it, whether it was found right; and finding out. Read only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.contrib import admin, messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from queues.admin.audit_links import rows_address
from queues.admin.audited import ReadOnlyAdmin, object_page
from queues.admin.columns import column, moment, short_hash
from queues.admin.worker import html_table
from queues.formats.times import relative
from queues.models import AuditAnchor, AuditChain, AuditVerification
from queues.operations.verifications import Running, verifier
from queues.store.queries import query

#: Verifications and anchors that a chain's page shows.
SHOWN = 10
#: Seconds after which a page that shows a running verification loads itself again.
REFRESH = 1


@dataclass(frozen=True, slots=True)
class ChainOverview:
    """A chain's row of audit_overview.sql, and the verification that runs."""

    rows: int
    hash: str
    last_at: datetime | None
    dropped: int
    waiting: int
    anchor_seq: int | None
    anchor_at: datetime | None
    anchor_key: str | None
    verified_at: datetime | None
    ok: bool | None
    verified_rows: int | None
    broken_seq: int | None
    finding: str | None
    seconds: float | None
    running: Running | None
    failure: str


def overviews(chains: list[AuditChain]) -> None:
    """Give chains their overviews, in two queries."""
    running = verifier.running()
    found = {id: rest for id, *rest in query("audit_overview", "default", chains=[chain.pk for chain in chains])}
    for chain in chains:
        rows, last_hash, *rest = found[chain.pk]
        hash_hex = bytes(last_hash).hex() if last_hash is not None else ""
        values = [rows, hash_hex, *rest, running.get(chain.pk), verifier.failure(chain.pk)]
        chain.overview = ChainOverview(*values)  # type: ignore[attr-defined]


@admin.register(AuditChain)
class AuditChainAdmin(ReadOnlyAdmin):
    list_display = ("name", "rows", "hash_shown", "last_row", "waiting", "anchor", "right", "verified", "verify_now")
    search_fields = ("name",)
    sortable_by = ("name",)
    actions = None
    pages = {"verify": "<int:id>/verify/"}
    change_list_template = "admin/queues/audit_change_list.html"
    change_form_template = "admin/queues/audit_change_form.html"
    fieldsets = (
        (None, {"fields": ("name", "rows", "head_hash", "last_row", "waiting", "created_at")}),
        ("Verification", {"fields": ("verified", "verify_now", "verifications")}),
        ("Anchors", {"fields": ("anchor", "anchors")}),
    )

    def has_verify_permission(self, request: HttpRequest) -> bool:
        """Whether the user may have a chain verified, which takes a processor for a while."""
        return self.has_view_permission(request) and request.user.has_perm("queues.add_auditverification")

    def prepare_rows(self, rows: list[Any]) -> None:
        overviews(rows)

    def refresh_after(self, rows: Sequence[Any]) -> int | None:
        return REFRESH if any(chain.overview.running for chain in rows) else None

    def get_list_display(self, request: HttpRequest) -> tuple[str, ...]:
        return self.list_display if self.has_verify_permission(request) else self.list_display[:-1]

    def get_fieldsets(self, request: HttpRequest, obj: AuditChain | None = None) -> Any:
        if self.has_verify_permission(request):
            return self.fieldsets
        head, _, anchors = self.fieldsets
        return (head, ("Verification", {"fields": ("verified", "verifications")}), anchors)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> AuditChain | None:
        chain: AuditChain | None = super().get_object(request, object_id, from_field)
        if chain is not None:
            overviews([chain])
        return chain

    @object_page("verify", post=True)
    def verify_view(self, request: HttpRequest, chain: AuditChain) -> HttpResponse:
        """Begin to verify a chain, unless that is under way; its page shows the progress."""
        try:
            started = verifier.start(chain.pk)
        except OSError as error:
            self.message_user(request, f"The verification could not be started: {error}", messages.ERROR)
        else:
            if started:
                with transaction.atomic():
                    self.log_done(request, chain, "verify", "Verification started.")
            text = f"Verifying {chain}." if started else f"{chain} is being verified already."
            self.message_user(request, text, messages.SUCCESS if started else messages.WARNING)
        return HttpResponseRedirect(reverse("admin:queues_auditchain_change", args=[chain.pk]))

    # Columns.

    def rows(self, chain: Any) -> SafeString:
        overview: ChainOverview = chain.overview
        shown = format_html('<a href="{}">{}</a>', rows_address(chain.pk), f"{overview.rows:,}")
        dropped = f", of which {overview.dropped:,} were dropped by retention"
        return format_html("{}{}", shown, dropped) if overview.dropped else shown

    hash_shown = column("head", lambda chain: short_hash(chain.overview.hash))
    head_hash = column("head hash", lambda chain: format_html("<code>{}</code>", chain.overview.hash))
    last_row = column("last row", lambda chain: moment(chain.overview.last_at))
    waiting = column("waiting in the journal", lambda chain: f"{chain.overview.waiting:,}")

    @admin.display(description="last anchor")
    def anchor(self, chain: Any) -> SafeString:
        overview: ChainOverview = chain.overview
        if overview.anchor_at is None or overview.anchor_key is None:
            return format_html("{}", "none yet")
        age = relative(overview.anchor_at, datetime.now(UTC))
        key = overview.anchor_key
        return format_html('seq {}, {}, key <code title="{}">{}…</code>', f"{overview.anchor_seq:,}", age, key, key[:8])

    right = column("right", lambda chain: chain.overview.ok, boolean=True)

    @admin.display(description="last verification")
    def verified(self, chain: Any) -> SafeString:
        overview: ChainOverview = chain.overview
        if overview.verified_at is None:
            return format_html("{}", "never")
        rate = _rate(overview.verified_rows or 0, overview.seconds or 0.0)
        at = relative(overview.verified_at, datetime.now(UTC))
        if overview.ok:
            return format_html("{}: {} rows are right ({})", at, f"{overview.verified_rows:,}", rate)
        return format_html(
            '{}: <strong class="error">broken at seq {}: {}</strong> ({})',
            at, overview.broken_seq, overview.finding, rate,
        )  # fmt: skip

    @admin.display(description="now")
    def verify_now(self, chain: Any) -> SafeString:
        overview: ChainOverview = chain.overview
        if (running := overview.running) is not None and not running.total:
            return format_html("{}", "verifying: it has just begun")
        if running is not None:
            return format_html(
                '<progress max="100" value="{0}"></progress> verifying: {0} %, {1} of {2} rows',
                running.percent, f"{running.done:,}", f"{running.total:,}",
            )  # fmt: skip
        address = reverse("admin:queues_auditchain_verify", args=[chain.pk])
        button = format_html('<button class="button" formaction="{}">Verify now</button>', address)
        failure = overview.failure
        return format_html('{} <strong class="error">{}</strong>', button, failure) if failure else button

    def verifications(self, chain: AuditChain) -> SafeString:
        newest = AuditVerification.objects.filter(chain=chain)[:SHOWN]
        return html_table(
            ("When", "Result", "Rows", "Seconds", "Rows a second"),
            (
                (
                    moment(one.at), "right" if one.ok else f"broken at seq {one.broken_seq}: {one.finding}",
                    f"{one.rows:,}", f"{one.seconds:.2f}", _rate(one.rows, one.seconds),
                )
                for one in newest
            ),
        )  # fmt: skip

    @admin.display(description="newest anchors")
    def anchors(self, chain: AuditChain) -> SafeString:
        newest = AuditAnchor.objects.filter(chain=chain).order_by("-number")[:SHOWN]
        rows = ((one.number, f"{one.seq:,}", moment(one.at), one.get_kind_display(), one.key) for one in newest)
        return html_table(("Number", "Seq", "When", "Why", "Key"), rows)


def _rate(rows: int, seconds: float) -> str:
    return f"{rows / seconds:,.0f} rows/s" if seconds > 0 else "-"
