from pathlib import Path

from django.db import migrations

SQL = Path(__file__).parent / "sql"


class Migration(migrations.Migration):
    dependencies = [
        ("queues", "0035_consumers_of_queues"),
    ]

    operations = [
        migrations.RunSQL(
            (SQL / "0036_shared_bodies.sql").read_text(), (SQL / "0036_shared_bodies_reverse.sql").read_text()
        ),
    ]
