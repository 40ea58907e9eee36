"""Rows of the audit chains are found by their ids in a tree, and no longer by hash.

Ids of messages grow: they go to neighbouring places in a tree, and all over the table in a hash index, which made half
of what an audited message cost. Rows go on being appended meanwhile: indexes of partitions with rows are built
concurrently, and take the place of the others in a moment. A migration that is stopped may be run again.
"""

from __future__ import annotations

from typing import Any

from django.db import migrations, transaction

#: Limit of the wait for transactions under way, after which the migration fails and may be run again.
PATIENCE = "10s"

PARTITIONS = "select inhrelid::regclass::text from pg_inherits where inhparent = 'queues_audit'::regclass order by 1"
UNFINISHED = (
    "select indexrelid::regclass::text from pg_index where not indisvalid and indexrelid::regclass::text like"
    " 'queues\\_audit\\_%%\\_record\\_new'"
)


def to_tree(_: Any, schema_editor: Any) -> None:
    _change(schema_editor.connection, "btree")


def to_hash(_: Any, schema_editor: Any) -> None:
    _change(schema_editor.connection, "hash")


def _change(connection: Any, method: str) -> None:
    with connection.cursor() as cursor:

        def names(sql: str) -> list[str]:
            cursor.execute(sql)
            return [name for (name,) in cursor.fetchall()]

        for index in names(UNFINISHED):
            cursor.execute(f"drop index {index}")
        for partition in names(PARTITIONS):
            cursor.execute(f"select exists (select from {partition})")
            if cursor.fetchone()[0]:
                create = f"create index concurrently if not exists {partition}_record_new on"
                cursor.execute(f"{create} {partition} using {method} (record_id)")
        with transaction.atomic(using=connection.alias):
            cursor.execute(f"set local lock_timeout = '{PATIENCE}'")
            cursor.execute("drop index if exists audit_record")
            cursor.execute(f"create index audit_record on only queues_audit using {method} (record_id)")
            for partition in names(PARTITIONS):
                index = f"{partition}_record_new"
                cursor.execute(f"create index if not exists {index} on {partition} using {method} (record_id)")
                cursor.execute(f"alter index audit_record attach partition {index}")
                cursor.execute(f"alter index {index} rename to {partition}_record_id_idx")


class Migration(migrations.Migration):
    #: Indexes are not built concurrently within a transaction.
    atomic = False

    dependencies = [
        ("queues", "0024_topology_changes"),
    ]

    operations = [
        migrations.RunPython(to_tree, to_hash),
    ]
