"""Workers: their connections, subscriptions and jobs. Read only; the pages refresh themselves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from django.contrib import admin
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from queues.admin.audited import ReadOnlyAdmin
from queues.admin.columns import anchor, column, moment, time_ago
from queues.admin.links import job_message, link, message_pages, page_of, queue_pages
from queues.formats.times import duration, relative
from queues.models import Worker


def html_table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> SafeString:
    """A small table in a field of a page."""
    lines = [(format_html_join("", "<td>{}</td>", ((cell,) for cell in row)),) for row in rows]
    if not lines:
        return format_html("{}", "none")
    return format_html(
        "<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>",
        format_html_join("", "<th>{}</th>", ((head,) for head in heads)),
        format_html_join("", "<tr>{}</tr>", lines),
    )


@admin.register(Worker)
class WorkerAdmin(ReadOnlyAdmin):
    list_display = ("wid", "address", "node", "connected", "queues", "active", "requests", "seen")
    list_filter = ("node",)
    related = ("node",)
    gone = "Worker {} is not connected any more."
    fields = (
        "wid", "address", "node_link", "connected", "requests", "active", "seen", "credits_by_queue", "working_on",
    )  # fmt: skip
    change_list_template = "admin/queues/live_change_list.html"
    change_form_template = "admin/queues/live_change_form.html"

    connected = column("connected", lambda worker: moment(worker.connected_at), ordering="connected_at")
    seen = column("last heard of", lambda one: time_ago(one.updated_at), ordering="updated_at")

    @admin.display(description="queues (credits)")
    def queues(self, worker: Worker) -> str:
        subscriptions = sorted(worker.subscriptions, key=lambda one: str(one["queue"]))
        return ", ".join(f"{one['queue']} ({one['credits']:,})" for one in subscriptions) or "-"

    node_link = column("node", lambda worker: anchor(page_of("node", worker.node_id), worker.node))

    @admin.display(description="subscriptions")
    def credits_by_queue(self, worker: Worker) -> str:
        pages = queue_pages(subscription["queue"] for subscription in worker.subscriptions)
        return html_table(
            ("Queue", "Credits", "Active", "Subscription"),
            (
                (link(pages, one["queue"], one["queue"]), f"{one['credits']:,}", f"{one['active']:,}", one["sid"])
                for one in worker.subscriptions
            ),
        )

    @admin.display(description="works on")
    def working_on(self, worker: Worker) -> str:
        now = datetime.now(UTC)
        pages = message_pages(id for job in worker.jobs if (id := job_message(job["jid"])) is not None)
        listed = html_table(
            ("Job", "Queue", "Attempt", "For", "Deadline"),
            (
                (
                    link(pages, job_message(job["jid"]), job["jid"]), job["queue"], job["attempt"],
                    duration(now.timestamp() - job["since"]), _deadline(job["deadline"], now),
                )
                for job in worker.jobs
            ),
        )  # fmt: skip
        more = worker.active - len(worker.jobs)
        return format_html("{}<p>and {} more</p>", listed, f"{more:,}") if more > 0 else listed


def _deadline(time: float | None, now: datetime) -> str:
    return "none" if time is None else relative(datetime.fromtimestamp(time, UTC), now)
