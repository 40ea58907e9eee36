from pathlib import Path

from django.db import migrations

SQL = Path(__file__).parent / "sql"


class Migration(migrations.Migration):
    dependencies = [
        ("queues", "0014_archive_without_waiting"),
    ]

    operations = [
        migrations.RunSQL(
            (SQL / "0015_notifications.sql").read_text(),
            (SQL / "0015_notifications_reverse.sql").read_text(),
        ),
    ]
