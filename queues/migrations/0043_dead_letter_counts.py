from pathlib import Path

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

SQL = Path(__file__).parent / "sql"


class Migration(migrations.Migration):
    """Counts of dead letters that went to another queue. Nodes from before it move them uncounted."""

    dependencies = [
        ("queues", "0042_segment_sizes"),
    ]

    operations = [
        migrations.CreateModel(
            name="DeadLetterTally",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("carried", models.BigIntegerField()),
                ("at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "queue",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="queues.queue",
                    ),
                ),
                (
                    "target",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="queues.queue",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "dead letter tallies",
                "default_permissions": (),
                "indexes": [models.Index(fields=["at"], name="deadlettertally_at")],
            },
        ),
        migrations.CreateModel(
            name="DeadLetterCount",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("carried", models.BigIntegerField()),
                (
                    "queue",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="queues.queue",
                    ),
                ),
                (
                    "target",
                    models.ForeignKey(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="queues.queue",
                    ),
                ),
            ],
            options={
                "default_permissions": (),
                "constraints": [
                    models.UniqueConstraint(fields=("queue", "target"), name="deadlettercount_once"),
                ],
            },
        ),
        migrations.RunSQL(
            (SQL / "0043_dead_letter_counts.sql").read_text(),
            (SQL / "0043_dead_letter_counts_reverse.sql").read_text(),
        ),
    ]
