from pathlib import Path

from django.db import migrations

SQL = Path(__file__).parent / "sql"


class Migration(migrations.Migration):
    dependencies = [
        ("queues", "0031_readers_of_segments"),
    ]

    operations = [
        migrations.RunSQL(
            (SQL / "0032_rotation.sql").read_text(), (SQL / "0032_rotation_reverse.sql").read_text()
        ),
    ]
