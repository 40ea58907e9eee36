"""Rows of audit chains that stand for several messages, which are found by the first of these.

Rows go on being appended meanwhile: indexes of partitions with rows are built concurrently. A migration that is stopped
may be run again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.db import migrations, transaction

SQL = Path(__file__).parent / "sql"

#: Limit of the wait for transactions under way, after which the migration fails and may be run again.
PATIENCE = "10s"

PARTITIONS = "select inhrelid::regclass::text from pg_inherits where inhparent = 'queues_audit'::regclass order by 1"
#: Letters have the first two of these events, and no rows that stand for several: their rows pay for two comparisons.
INDEX = (
    "(queues_audit_first(record_id))"
    " where event <> 'send' and event <> 'ack' and queues_audit_first(record_id) is not null"
)


def add_index(_: Any, schema_editor: Any) -> None:
    connection = schema_editor.connection
    with connection.cursor() as cursor:

        def names(sql: str) -> list[str]:
            cursor.execute(sql)
            return [name for (name,) in cursor.fetchall()]

        with transaction.atomic(using=connection.alias):
            cursor.execute("drop function if exists queues_audit_first, queues_audit_last cascade")
            cursor.execute((SQL / "0037_audit_spans.sql").read_text())
        for partition in names(PARTITIONS):
            cursor.execute(f"select exists (select from {partition})")
            if cursor.fetchone()[0]:
                cursor.execute(f"create index concurrently {partition}_span on {partition} {INDEX}")
        with transaction.atomic(using=connection.alias):
            cursor.execute(f"set local lock_timeout = '{PATIENCE}'")
            cursor.execute(f"create index audit_span on only queues_audit {INDEX}")
            for partition in names(PARTITIONS):
                cursor.execute(f"create index if not exists {partition}_span on {partition} {INDEX}")
                cursor.execute(f"alter index audit_span attach partition {partition}_span")


def drop_index(_: Any, schema_editor: Any) -> None:
    with schema_editor.connection.cursor() as cursor:
        cursor.execute("drop function if exists queues_audit_first, queues_audit_last cascade")


class Migration(migrations.Migration):
    #: Indexes are not built concurrently within a transaction.
    atomic = False

    dependencies = [
        ("queues", "0036_shared_bodies"),
    ]

    operations = [
        migrations.RunPython(add_index, drop_index),
    ]
