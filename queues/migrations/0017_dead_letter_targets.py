from pathlib import Path

from django.db import migrations

SQL = Path(__file__).parent / "sql"


class Migration(migrations.Migration):
    dependencies = [
        ("queues", "0016_celerys_own"),
    ]

    operations = [
        migrations.RunSQL(
            (SQL / "0017_dead_letter_targets.sql").read_text(),
            (SQL / "0017_dead_letter_targets_reverse.sql").read_text(),
        ),
    ]
