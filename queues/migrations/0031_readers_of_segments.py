from pathlib import Path

from django.db import migrations

SQL = Path(__file__).parent / "sql"


class Migration(migrations.Migration):
    dependencies = [
        ("queues", "0030_ready_segments"),
    ]

    operations = [
        migrations.RunSQL(
            (SQL / "0031_readers_of_segments.sql").read_text(),
            (SQL / "0031_readers_of_segments_reverse.sql").read_text(),
        ),
    ]
