import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

import queues.models.cron_schedule
import queues.models.etl_schedule


class Migration(migrations.Migration):
    dependencies = [
        ("queues", "0010_etl"),
    ]

    operations = [
        migrations.AddField(
            model_name="etlrun",
            name="restart_of",
            field=models.ForeignKey(
                help_text="The lost run that this repeats.",
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="restarts",
                to="queues.etlrun",
            ),
        ),
        migrations.CreateModel(
            name="EtlSchedule",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=100, unique=True)),
                (
                    "cron",
                    models.CharField(
                        help_text="Minute, hour, day of month, month, day of week; for example 0 3 * * MON-FRI.",
                        max_length=200,
                        validators=[queues.models.cron_schedule.validate_cron],
                        verbose_name="schedule",
                    ),
                ),
                (
                    "timezone",
                    models.CharField(
                        default=queues.models.cron_schedule.default_timezone,
                        help_text="Time zone of the schedule, for example Europe/Berlin.",
                        max_length=64,
                        validators=[queues.models.cron_schedule.validate_timezone],
                        verbose_name="time zone",
                    ),
                ),
                (
                    "enabled",
                    models.BooleanField(db_default=True, default=True, help_text="Whether it runs on schedule."),
                ),
                (
                    "bodies",
                    models.CharField(
                        choices=[("none", "nothing"), ("raw", "bytes"), ("json", "JSON, as text or as columns")],
                        default=queues.models.etl_schedule.default_bodies,
                        help_text="The form of exported payloads; the archive has those of queues with full retention.",
                        max_length=4,
                    ),
                ),
                (
                    "body_schema",
                    models.TextField(
                        blank=True,
                        default=queues.models.etl_schedule.default_body_schema,
                        help_text="Of JSON bodies, as Spark's DDL: order_id BIGINT, "
                        "total DOUBLE. Empty: one column of text.",
                        verbose_name="columns",
                    ),
                ),
                (
                    "verify",
                    models.BooleanField(
                        default=queues.models.etl_schedule.default_verify,
                        help_text="Each run verifies every chain whole.",
                        verbose_name="verify the audit chains",
                    ),
                ),
                ("next_run_at", models.DateTimeField(editable=False, null=True)),
                ("last_run_at", models.DateTimeField(editable=False, null=True)),
                (
                    "last_error",
                    models.TextField(
                        db_default="",
                        default="",
                        editable=False,
                        help_text="The reason why the last due run did not begin.",
                    ),
                ),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
                ),
                (
                    "last_run",
                    models.ForeignKey(
                        editable=False,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="queues.etlrun",
                    ),
                ),
            ],
            options={
                "verbose_name": "ETL schedule",
                "ordering": ("name",),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("name", ""), _negated=True), name="etlschedule_name_not_empty"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("bodies__in", ["none", "raw", "json"])), name="etlschedule_bodies_known"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("bodies", "json"), ("body_schema", ""), _connector="OR"),
                        name="etlschedule_columns_of_json",
                        violation_error_message="Columns are made of JSON bodies only.",
                    ),
                ],
            },
        ),
    ]
