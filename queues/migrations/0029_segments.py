from pathlib import Path

from django.db import migrations

SQL = Path(__file__).parent / "sql"


class Migration(migrations.Migration):
    dependencies = [
        ("queues", "0028_audit_statistics"),
    ]

    operations = [
        migrations.RunSQL(
            (SQL / "0029_segments.sql").read_text(),
            (SQL / "0029_segments_reverse.sql").read_text(),
            state_operations=[migrations.AlterModelTable("message", "queues_openmessage")],
        ),
    ]
