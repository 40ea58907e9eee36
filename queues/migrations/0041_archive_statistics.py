from pathlib import Path

from django.db import migrations

SQL = Path(__file__).parent / "sql"


class Migration(migrations.Migration):
    dependencies = [
        ("queues", "0040_first_samplemark"),
    ]

    operations = [
        migrations.RunSQL(
            (SQL / "0041_archive_statistics.sql").read_text(),
            (SQL / "0041_archive_statistics_reverse.sql").read_text(),
        ),
    ]
