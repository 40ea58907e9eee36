"""Where a run's window begins: at the end of the last window, if the database is still the same."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from queues.etl.job.database import DatabaseSnapshot, JobConnection
from queues.etl.job.ledger import ExportState
from queues.etl.job.window import TransactionSnapshot, Window


@dataclass(frozen=True, slots=True)
class Beginning:
    """A run's window and the snapshot that ends it. `again`: the output may already have some of its rows."""

    window: Window
    end: DatabaseSnapshot
    again: bool = False
    #: Transaction and audit numbers in the output belong to another database.
    another: bool = False
    warning: str = ""


ANOTHER = "The database is another one than the last run has read: it was restored from a dump, or upgraded."
EARLIER = "The database does not know of the last run: it was set back to an earlier state."
GAP = (
    "The last run was {} days ago, and the archive is kept for {}: what was finished in between may have been dropped "
    "before it was read. Run it more often."
)


def begin(
    database: JobConnection, end: DatabaseSnapshot, last: ExportState | None, output: str, since: str | None,
    archive_days: int,
) -> Beginning:
    """Cut the window of a run into `output`, whose last record has the state `last`: it ends at `end`."""
    after = TransactionSnapshot.parse(end.snapshot)
    if last is None:
        return Beginning(Window(None, after, since), end)
    before = TransactionSnapshot.parse(last.snapshot)
    if (last.system, last.database) != (end.system, end.database):
        return _begin_anew(database, ANOTHER)
    # A database that has the last run's token has all that its window saw.
    if after.xmax < before.xmax or not database.knows(output, last.token):
        return _begin_anew(database, EARLIER)
    gap = end.at - datetime.fromisoformat(last.at)
    warning = GAP.format(gap.days, archive_days) if gap > timedelta(days=archive_days) else ""
    return Beginning(Window(before, after, since), end, since is not None, warning=warning)


def _begin_anew(database: JobConnection, reason: str) -> Beginning:
    """Read everything and leave out what the output already has."""
    adopted = database.adopt_restored_rows()
    end = database.snapshot()
    text = f"{reason} Everything in the archive is read again, and what the output does not have is added."
    text += f" {adopted} rows came with a dump." if adopted else ""
    return Beginning(
        Window(None, TransactionSnapshot.parse(end.snapshot)), end, again=True, another=True, warning=text
    )
