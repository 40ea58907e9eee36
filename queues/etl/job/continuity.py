"""The beginning of a run's window: the last one's end, if this is still the database that the last run has read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from queues.etl.job.database import JobConnection, Moment
from queues.etl.job.ledger import ExportState
from queues.etl.job.window import TransactionSnapshot, Window


@dataclass(frozen=True, slots=True)
class Beginning:
    """A run's window and the moment that ends it. `again`: the output may have rows of it already."""

    window: Window
    moment: Moment
    again: bool = False
    #: The numbers of transactions, and of audit rows, in the output say nothing about this database.
    another: bool = False
    warning: str = ""


def begin(
    database: JobConnection, last: ExportState | None, output: str, since: str | None, archive_days: int
) -> Beginning:
    """Cut the window of a run into `output`, whose last record has the state `last`."""
    moment = database.moment()
    after = TransactionSnapshot.parse(moment.snapshot)
    if last is None:
        return Beginning(Window(None, after, since), moment)
    before = TransactionSnapshot.parse(last.snapshot)
    reason = _another_database(last, moment) or _earlier_state(database, last, before, after, output)
    if reason:
        return _begin_anew(database, reason)
    return Beginning(Window(before, after, since), moment, since is not None, warning=_gap(last, moment, archive_days))


def _another_database(last: ExportState, moment: Moment) -> str:
    if (last.system, last.database) == (moment.system, moment.database):
        return ""
    return "The database is another one than the last run has read: it was restored from a dump, or upgraded."


def _earlier_state(
    database: JobConnection, last: ExportState, before: TransactionSnapshot, after: TransactionSnapshot, output: str
) -> str:
    """The sign that the database was set back; empty: it has the last run's token, and so all that its window saw."""
    if after.xmax >= before.xmax and database.knows(output, last.token):
        return ""
    return "The database does not know of the last run: it was set back to an earlier state."


def _begin_anew(database: JobConnection, reason: str) -> Beginning:
    """Read everything; what the output has already is left out."""
    adopted = database.adopt_restored_rows()
    moment = database.moment()
    text = f"{reason} Everything in the archive is read again, and what the output does not have is added."
    text += f" {adopted} rows came with a dump." if adopted else ""
    return Beginning(
        Window(None, TransactionSnapshot.parse(moment.snapshot)), moment, again=True, another=True, warning=text
    )


def _gap(last: ExportState, moment: Moment, archive_days: int) -> str:
    """A warning when the archive may have dropped what no run has read."""
    gap = moment.at - datetime.fromisoformat(last.at)
    if gap <= timedelta(days=archive_days):
        return ""
    return (
        f"The last run was {gap.days} days ago, and the archive is kept for {archive_days}: what was finished in "
        "between may have been dropped before it was read. Run it more often."
    )
