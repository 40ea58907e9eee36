from pathlib import Path

from django.db import migrations

SQL = Path(__file__).parent / "sql"


class Migration(migrations.Migration):
    dependencies = [
        ("queues", "0043_dead_letter_counts"),
    ]

    operations = [
        migrations.RunSQL(
            (SQL / "0044_rotation_gives_way.sql").read_text(),
            (SQL / "0044_rotation_gives_way_reverse.sql").read_text(),
        ),
    ]
