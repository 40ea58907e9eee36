"""What empties Django's tables empties the broker's others too, and ids do not come back."""

from pathlib import Path

from django.db import migrations

SQL = Path(__file__).parent / "sql"


class Migration(migrations.Migration):
    dependencies = [("queues", "0001_initial")]

    operations = [
        migrations.RunSQL((SQL / "0002_flush.sql").read_text(), (SQL / "0002_flush_reverse.sql").read_text()),
    ]
