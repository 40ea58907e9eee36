from pathlib import Path

import django.core.validators
import django.db.models.deletion
from django.db import migrations, models
from django.db.models.functions import Now

import queues.models.cron_schedule
import queues.models.periodic

SQL = Path(__file__).parent / "sql"


class Migration(migrations.Migration):
    dependencies = [("queues", "0003_jobs")]

    operations = [
        migrations.CreateModel(
            name="Worker",
            fields=[
                ("wid", models.UUIDField(primary_key=True, serialize=False, verbose_name="worker")),
                ("address", models.TextField()),
                ("connected_at", models.DateTimeField()),
                ("requests", models.BigIntegerField(db_default=0, help_text="Requests since it connected.")),
                ("subscriptions", models.JSONField(default=list)),
                ("jobs", models.JSONField(default=list)),
                ("active", models.IntegerField(db_default=0, help_text="Jobs it works on now.")),
                ("updated_at", models.DateTimeField(db_default=Now())),
                (
                    "node",
                    models.ForeignKey(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="workers",
                        to="queues.node",
                    ),
                ),
            ],
            options={"ordering": ("connected_at", "wid")},
        ),
        migrations.CreateModel(
            name="PeriodicJob",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=100, unique=True)),
                (
                    "payload",
                    models.JSONField(
                        blank=True,
                        default=dict,
                        help_text="The payload, as JSON.",
                        null=True,
                        validators=[queues.models.periodic.validate_payload],
                    ),
                ),
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
                    "priority",
                    models.SmallIntegerField(
                        db_default=0,
                        default=0,
                        help_text="-100 to 100; higher ones are delivered first.",
                        validators=[
                            django.core.validators.MinValueValidator(-100),
                            django.core.validators.MaxValueValidator(100),
                        ],
                    ),
                ),
                (
                    "max_attempts",
                    models.PositiveSmallIntegerField(
                        blank=True,
                        help_text="Overrides the queue's; 0: without limit.",
                        null=True,
                        validators=[django.core.validators.MaxValueValidator(32767)],
                    ),
                ),
                (
                    "unique",
                    models.BooleanField(
                        db_default=False,
                        default=False,
                        help_text="Skip a run while the job of the last one is unfinished.",
                        verbose_name="one at a time",
                    ),
                ),
                ("next_run_at", models.DateTimeField(editable=False, null=True)),
                ("last_run_at", models.DateTimeField(editable=False, null=True)),
                (
                    "last_message_id",
                    models.BigIntegerField(editable=False, help_text="The last job, by its first id.", null=True),
                ),
                (
                    "last_error",
                    models.TextField(
                        db_default="",
                        default="",
                        editable=False,
                        help_text="The reason why the last due run was skipped.",
                    ),
                ),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                (
                    "queue",
                    models.ForeignKey(
                        db_constraint=False,
                        limit_choices_to=models.Q(
                            ("kind", "queue"), models.Q(("name__startswith", "_"), _negated=True)
                        ),
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="periodic_jobs",
                        to="queues.queue",
                    ),
                ),
            ],
            options={
                "ordering": ("name",),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("name", ""), _negated=True), name="periodic_name_not_empty"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("priority__gte", -100), ("priority__lte", 100)),
                        name="periodic_priority_in_range",
                    ),
                ],
            },
        ),
        migrations.RunSQL(
            (SQL / "0004_periodic_jobs_and_workers.sql").read_text(encoding="utf-8"),
            (SQL / "0004_periodic_jobs_and_workers_reverse.sql").read_text(encoding="utf-8"),
        ),
    ]
