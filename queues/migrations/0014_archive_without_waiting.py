from pathlib import Path

from django.db import migrations

SQL = Path(__file__).parent / "sql"


class Migration(migrations.Migration):
    dependencies = [
        ("queues", "0013_vacuum_without_pauses"),
    ]

    operations = [
        migrations.RunSQL(
            (SQL / "0014_archive_without_waiting.sql").read_text(),
            (SQL / "0014_archive_without_waiting_reverse.sql").read_text(),
        ),
    ]
