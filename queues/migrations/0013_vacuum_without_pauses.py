from pathlib import Path

from django.db import migrations

SQL = Path(__file__).parent / "sql"


class Migration(migrations.Migration):
    dependencies = [
        ("queues", "0012_task_runs"),
    ]

    operations = [
        migrations.RunSQL(
            (SQL / "0013_vacuum_without_pauses.sql").read_text(),
            (SQL / "0013_vacuum_without_pauses_reverse.sql").read_text(),
        ),
    ]
