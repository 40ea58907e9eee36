from pathlib import Path

import django.db.models.deletion
from django.db import migrations, models

SQL = Path(__file__).parent / "sql"


class Migration(migrations.Migration):
    dependencies = [
        ("queues", "0007_audited_queues"),
    ]

    operations = [
        migrations.CreateModel(
            name="TemporaryQueue",
            fields=[
                (
                    "queue",
                    models.OneToOneField(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="temporary",
                        serialize=False,
                        to="queues.queue",
                    ),
                ),
                ("auto_delete", models.BooleanField(help_text="Deleted when its last consumer leaves.")),
                ("expires", models.DurationField(help_text="Lifetime without a consumer.")),
                (
                    "unused_since",
                    models.DateTimeField(help_text="The start of its time without a consumer.", null=True),
                ),
            ],
        ),
        migrations.CreateModel(
            name="KombuBinding",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("exchange", models.TextField()),
                (
                    "type",
                    models.CharField(
                        choices=[("direct", "direct"), ("topic", "topic"), ("fanout", "fanout")], max_length=16
                    ),
                ),
                ("routing_key", models.TextField(blank=True)),
                (
                    "queue",
                    models.ForeignKey(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="kombu_bindings",
                        to="queues.queue",
                    ),
                ),
            ],
            options={
                "verbose_name": "Celery binding",
                "ordering": ("exchange", "routing_key", "id"),
                "constraints": [
                    models.UniqueConstraint(fields=("exchange", "routing_key", "queue"), name="kombubinding_once"),
                    models.CheckConstraint(
                        condition=models.Q(("type__in", ["direct", "topic", "fanout"])), name="kombubinding_type_known"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("exchange", ""), _negated=True), name="kombubinding_exchange_not_empty"
                    ),
                ],
            },
        ),
        migrations.RunSQL((SQL / "0008_celery.sql").read_text(), (SQL / "0008_celery_reverse.sql").read_text()),
    ]
