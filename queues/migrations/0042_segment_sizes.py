from pathlib import Path

from django.db import migrations

SQL = Path(__file__).parent / "sql"


class Migration(migrations.Migration):
    dependencies = [
        ("queues", "0041_archive_statistics"),
    ]

    operations = [
        migrations.RunSQL(
            (SQL / "0042_segment_sizes.sql").read_text(),
            (SQL / "0042_segment_sizes_reverse.sql").read_text(),
        ),
    ]
