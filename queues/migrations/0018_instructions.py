from pathlib import Path

from django.db import migrations

SQL = Path(__file__).parent / "sql"


class Migration(migrations.Migration):
    dependencies = [
        ("queues", "0017_dead_letter_targets"),
    ]

    operations = [
        migrations.RunSQL(
            (SQL / "0018_instructions.sql").read_text(),
            (SQL / "0018_instructions_reverse.sql").read_text(),
        ),
    ]
