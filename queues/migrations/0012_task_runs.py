import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("queues", "0011_etl_schedule"),
    ]

    operations = [
        migrations.CreateModel(
            name="TaskRun",
            fields=[
                ("id", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("backend", models.CharField(help_text="The alias in TASKS.", max_length=100)),
                ("queue", models.CharField(help_text="The queue's name.", max_length=255)),
                ("task", models.TextField(help_text="The function.")),
                ("args", models.JSONField(default=list)),
                ("kwargs", models.JSONField(default=dict)),
                ("priority", models.SmallIntegerField(default=0)),
                ("run_after", models.DateTimeField(null=True)),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("READY", "ready"),
                            ("RUNNING", "running"),
                            ("FAILED", "failed"),
                            ("SUCCESSFUL", "successful"),
                        ],
                        default="READY",
                        max_length=16,
                    ),
                ),
                ("enqueued_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("started_at", models.DateTimeField(help_text="The first attempt.", null=True)),
                ("last_attempted_at", models.DateTimeField(null=True)),
                ("finished_at", models.DateTimeField(null=True)),
                (
                    "worker_ids",
                    models.JSONField(default=list, help_text="The worker of each attempt."),
                ),
                ("errors", models.JSONField(default=list, help_text="Class and traceback of each failure.")),
                ("return_value", models.JSONField(null=True)),
            ],
            options={
                "ordering": ("-enqueued_at",),
                "indexes": [
                    models.Index(
                        condition=models.Q(("finished_at__isnull", False)),
                        fields=["finished_at"],
                        name="taskrun_finished",
                    )
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("status__in", ["READY", "RUNNING", "FAILED", "SUCCESSFUL"])),
                        name="taskrun_status_known",
                    )
                ],
            },
        ),
    ]
