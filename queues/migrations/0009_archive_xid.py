from pathlib import Path

from django.db import migrations, models
from django.db.models.functions import Cast

SQL = Path(__file__).parent / "sql"


class Migration(migrations.Migration):
    dependencies = [
        ("queues", "0008_celery"),
    ]

    operations = [
        migrations.RunSQL(
            (SQL / "0009_archive_xid.sql").read_text(),
            (SQL / "0009_archive_xid_reverse.sql").read_text(),
            state_operations=[
                migrations.AddField(
                    model_name="archivedmessage",
                    name="xid",
                    field=models.BigIntegerField(
                        db_default=Cast(
                            Cast(models.Func(function="pg_current_xact_id"), models.TextField()),
                            models.BigIntegerField(),
                        ),
                        help_text="The transaction that wrote it; 0: before this column.",
                    ),
                ),
            ],
        ),
    ]
