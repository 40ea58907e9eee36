"""Partitions are made and dropped with the rights of the tables' owner, whoever has the upkeep done."""

from pathlib import Path

from django.db import migrations

SQL = Path(__file__).parent / "sql"


class Migration(migrations.Migration):
    dependencies = [("queues", "0004_no_last_node")]

    operations = [
        migrations.RunSQL(
            (SQL / "0005_upkeep_rights.sql").read_text(), (SQL / "0005_upkeep_rights_reverse.sql").read_text()
        ),
    ]
