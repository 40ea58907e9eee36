from pathlib import Path

from django.db import migrations, models

SQL = Path(__file__).parent / "sql"
CONTENTS = [
    (1, "application/msgpack"),
    (2, "application/json"),
    (3, "application/vnd.peerbus.v1+json"),
    (4, "application/vnd.fivewire.celery"),
]


class Migration(migrations.Migration):
    dependencies = [
        ("queues", "0015_notifications"),
    ]

    operations = [
        *(
            migrations.AlterField(
                model_name=model,
                name="content",
                field=models.SmallIntegerField(
                    choices=CONTENTS, help_text="Type of the payload; empty: bytes.", null=True
                ),
            )
            for model in ("archivedmessage", "message")
        ),
        migrations.RunSQL(
            (SQL / "0016_celerys_own.sql").read_text(),
            (SQL / "0016_celerys_own_reverse.sql").read_text(),
        ),
    ]
