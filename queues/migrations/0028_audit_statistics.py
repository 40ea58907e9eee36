from pathlib import Path

from django.db import migrations

SQL = Path(__file__).parent / "sql"


class Migration(migrations.Migration):
    dependencies = [
        ("queues", "0027_single_active_consumer"),
    ]

    operations = [
        migrations.RunSQL(
            (SQL / "0028_audit_statistics.sql").read_text(),
            (SQL / "0028_audit_statistics_reverse.sql").read_text(),
        ),
    ]
