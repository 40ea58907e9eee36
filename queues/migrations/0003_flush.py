"""What empties Django's tables empties the broker's others too, and ids do not come back."""

from pathlib import Path

from django.db import migrations

SQL = Path(__file__).parent / "sql"


class Migration(migrations.Migration):
    dependencies = [("queues", "0002_deaths_and_idle_subscriptions")]

    operations = [
        migrations.RunSQL((SQL / "0003_flush.sql").read_text(), (SQL / "0003_flush_reverse.sql").read_text()),
    ]
