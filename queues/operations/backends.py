"""Ending a session of the database that holds back vacuum."""

from __future__ import annotations

from django.db import DEFAULT_DB_ALIAS, ProgrammingError, transaction

from queues.errors import OperationError
from queues.operations.audit_log import record
from queues.operations.overview import HorizonHolder
from queues.store.queries import query


class BackendGone(OperationError):
    """The session has ended, or its process id belongs to another one by now."""


class BackendProtected(OperationError):
    """The site's role may not end the session."""


def end_backend(holder: HorizonHolder, by: str, using: str = DEFAULT_DB_ALIAS) -> None:
    """End a session, which rolls its transaction back; recorded as done by `by`. Raises BackendGone or
    BackendProtected."""
    with transaction.atomic(using=using):
        record(by, "end-backend", f"backend:{holder.name}", f"{holder.user} {holder.application}".strip(), using)
        try:
            with transaction.atomic(using=using):
                ended = query("end_backend", using, pid=int(holder.name), started=holder.started)
        except ProgrammingError as error:  # insufficient privilege
            raise BackendProtected(f"PostgreSQL does not let this site end it: {error}".strip()) from error
        if not ended:
            raise BackendGone("The session has ended by itself.")
