"""The migration that replaces the index by which rows are found: back and forth, with rows, and after a cut."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from django.db import connection

from queues.audit.chains import append, get_chain
from queues.audit.listing import rows
from queues.audit.verify import verify
from tests.queues.audit.conftest import CHAIN, Intruder, letters

migration: Any = import_module("queues.migrations.0025_audit_records_by_tree")
INDEXES = (
    "select relname, amname, indisvalid, inhparent is not null from pg_index join pg_class c on c.oid = indexrelid"
    " join pg_am a on a.oid = relam left join pg_inherits on inhrelid = c.oid where relname ~ 'audit_.*record'"
)


def check(intruder: Intruder, method: str, count: int) -> None:
    """Each partition has one index, which is part of the table's, and rows are found and appended."""
    indexes = intruder.run(INDEXES)
    partitions = [name for (name,) in intruder.run(migration.PARTITIONS)]
    assert sorted(indexes) == sorted(
        [("audit_record", method, True, False), *((f"{name}_record_id_idx", method, True, True) for name in partitions)]
    )
    append(CHAIN, letters(1, count))
    assert [row.seq for row in rows(get_chain(CHAIN), f"m{count}", 9)] == [count]
    assert verify(CHAIN, ()).rows == count + 1


@pytest.mark.django_db(transaction=True)
def test_rows_are_found_by_their_ids_after_the_index_was_replaced_and_put_back(intruder: Intruder) -> None:
    schema_editor = SimpleNamespace(connection=connection)
    append(CHAIN, letters(3))
    [(used,)] = intruder.run("select distinct tableoid::regclass::text from queues_audit")
    migration.to_hash(None, schema_editor)
    check(intruder, "hash", 3)
    with pytest.raises(psycopg.errors.UniqueViolation):  # leaves an index that is not valid
        intruder.connection.execute(f"create unique index concurrently {used}_record_new on {used} (chain_id)".encode())
    migration.to_tree(None, schema_editor)
    check(intruder, "btree", 4)
