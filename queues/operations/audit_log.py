"""The record of what operators do, in the admin and in the shell: the audit chain "operators".

A row's event is a short verb, its id says to what (`queue:orders`, `key:billing`, `message:123`), `from` is who did it
and `to` a short detail or nothing. No key, password or payload ever gets into one.

What takes one transaction is recorded in it. What takes several (purging, moving, deleting a queue) is recorded before
it begins, with how many messages there were; if it is refused or interrupted then, that is recorded, too.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from django.db import DEFAULT_DB_ALIAS, connections, models, transaction

from queues.audit.chains import OPERATORS, journal
from queues.audit.events import MAX_ID, AuditEvent
from queues.models import BulkOperation, EtlRun, Message, Route, Subscription

#: The setting by which triggers know the operator of a transaction.
SETTING = "fivewire.operator"
MAX_DETAIL = 1000

#: The kinds of objects in the chain, where they are not the names of their models.
KINDS: Mapping[str, str] = {
    "queues.apikey": "key", "queues.auditchain": "chain", "queues.bulkoperation": "bulk", "queues.etlrun": "etl-run",
    "queues.etlschedule": "etl-schedule", "queues.mailbox": "peer", "queues.periodicjob": "periodic",
}  # fmt: skip


def record(by: str, event: str, id: str, detail: str = "", using: str = DEFAULT_DB_ALIAS) -> None:
    """Record in the current transaction that `by` did something. The row is in the chain soon after the commit."""
    short = id.encode()[:MAX_ID].decode(errors="ignore")
    journal(OPERATORS, [AuditEvent(event, short, by, detail[:MAX_DETAIL])], using)


@contextmanager
def recorded(event: str, id: str, detail: str) -> Iterator[str]:
    """Record shell work of several transactions before it begins, and again if it fails. Yields the operator's name."""
    by = shell_operator()
    record(by, event, id, detail)
    try:
        yield by
    except Exception as error:
        record(by, "failed", id, f"{event}: {error}")
        raise


def record_id(obj: models.Model) -> str:
    """The name of an object in the chain, such as `queue:orders`."""
    kind = KINDS.get(obj._meta.label_lower, obj._meta.model_name)
    if isinstance(obj, Message):
        return f"{kind}:{obj.origin_id or obj.pk}"
    if isinstance(obj, Route):
        return f"{kind}:{obj.source}→{obj.target}"
    return f"{kind}:{obj.pk if isinstance(obj, BulkOperation | EtlRun | Subscription) else obj}"


def declare(by: str, using: str = DEFAULT_DB_ALIAS) -> None:
    """Name the operator in the current transaction, so that rows written by triggers name him too."""
    if not connections[using].in_atomic_block:
        raise transaction.TransactionManagementError("declare() is for a transaction")
    with connections[using].cursor() as cursor:
        cursor.execute("select set_config(%s, %s, true)", [SETTING, by])


def shell_operator() -> str:
    """The operator who runs a command, by the system's user name."""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a user without a name, as in a container
        name = str(os.getuid())
    return f"shell:{name}"
