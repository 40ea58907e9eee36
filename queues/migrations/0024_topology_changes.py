from pathlib import Path

from django.db import migrations

SQL = Path(__file__).parent / "sql"


class Migration(migrations.Migration):
    dependencies = [
        ("queues", "0023_connections"),
    ]

    operations = [
        migrations.RunSQL(
            (SQL / "0024_topology_changes.sql").read_text(),
            (SQL / "0024_topology_changes_reverse.sql").read_text(),
        ),
    ]
