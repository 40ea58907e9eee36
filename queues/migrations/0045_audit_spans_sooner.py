from pathlib import Path

from django.db import migrations

SQL = Path(__file__).parent / "sql"


class Migration(migrations.Migration):
    """A row of a letter is found sooner not to stand for several messages."""

    dependencies = [
        ("queues", "0044_rotation_gives_way"),
    ]

    operations = [
        migrations.RunSQL(
            (SQL / "0045_audit_spans_sooner.sql").read_text(),
            (SQL / "0045_audit_spans_sooner_reverse.sql").read_text(),
        ),
    ]
