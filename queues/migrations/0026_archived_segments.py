from pathlib import Path

from django.db import migrations

SQL = Path(__file__).parent / "sql"


class Migration(migrations.Migration):
    dependencies = [
        ("queues", "0025_audit_records_by_tree"),
    ]

    operations = [
        migrations.RunSQL(
            (SQL / "0026_archived_segments.sql").read_text(),
            (SQL / "0026_archived_segments_reverse.sql").read_text(),
        ),
    ]
