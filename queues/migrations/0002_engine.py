from pathlib import Path

from django.db import migrations

SQL = Path(__file__).parent / "sql"


class Migration(migrations.Migration):
    dependencies = [("queues", "0001_initial")]

    operations = [
        migrations.RunSQL(
            (SQL / "0002_engine.sql").read_text(encoding="utf-8"),
            (SQL / "0002_engine_reverse.sql").read_text(encoding="utf-8"),
        )
    ]
