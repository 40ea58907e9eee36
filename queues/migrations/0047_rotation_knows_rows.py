from pathlib import Path

from django.db import migrations

SQL = Path(__file__).parent / "sql"


class Migration(migrations.Migration):
    """A slot is emptied only if its segments are the very ones that were found settled."""

    dependencies = [
        ("queues", "0046_versions_sooner"),
    ]

    operations = [
        migrations.RunSQL(
            (SQL / "0047_rotation_knows_rows.sql").read_text(),
            (SQL / "0047_rotation_knows_rows_reverse.sql").read_text(),
        ),
    ]
