from pathlib import Path

from django.db import migrations

SQL = Path(__file__).parent / "sql"


class Migration(migrations.Migration):
    """Each publish asks for the topology's version with fewer queries."""

    dependencies = [
        ("queues", "0045_audit_spans_sooner"),
    ]

    operations = [
        migrations.RunSQL(
            (SQL / "0046_versions_sooner.sql").read_text(),
            (SQL / "0046_versions_sooner_reverse.sql").read_text(),
        ),
    ]
