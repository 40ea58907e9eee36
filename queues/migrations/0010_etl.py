from pathlib import Path

import django.db.models.functions.datetime
from django.db import migrations, models

SQL = Path(__file__).parent / "sql"


class Migration(migrations.Migration):
    dependencies = [
        ("queues", "0009_archive_xid"),
    ]

    operations = [
        migrations.CreateModel(
            name="EtlWitness",
            fields=[
                ("output", models.TextField(primary_key=True, serialize=False)),
                ("token", models.UUIDField()),
                ("previous", models.UUIDField(help_text="The token before it, for a run that failed.", null=True)),
                ("at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
        ),
        migrations.CreateModel(
            name="EtlRun",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("queued", "queued"),
                            ("running", "running"),
                            ("succeeded", "succeeded"),
                            ("failed", "failed"),
                            ("cancelled", "cancelled"),
                            ("lost", "lost"),
                        ],
                        db_default="queued",
                        default="queued",
                        max_length=9,
                    ),
                ),
                ("trigger", models.CharField(help_text="The user or schedule that started it.", max_length=200)),
                ("output", models.TextField(help_text="The output path.")),
                (
                    "options",
                    models.JSONField(default=dict, help_text="Its options: since, bodies, body_schema, verify."),
                ),
                ("number", models.BigIntegerField(help_text="Its number in the output.", null=True)),
                (
                    "window_from",
                    models.TextField(
                        blank=True, help_text="The snapshot at which its window begins; empty: everything."
                    ),
                ),
                ("window_to", models.TextField(blank=True, help_text="The snapshot at which its window ends.")),
                ("queued_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("started_at", models.DateTimeField(null=True)),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "heartbeat_at",
                    models.DateTimeField(help_text="The last heartbeat of its supervising process.", null=True),
                ),
                ("host", models.CharField(blank=True, max_length=255)),
                ("pid", models.IntegerField(null=True)),
                (
                    "cancelling",
                    models.BooleanField(db_default=False, default=False, help_text="A cancel was requested."),
                ),
                ("stage", models.CharField(blank=True, max_length=40)),
                ("done", models.BigIntegerField(db_default=0, default=0, help_text="Finished units of the stage.")),
                (
                    "total",
                    models.BigIntegerField(db_default=0, default=0, help_text="All units of the stage; 0: unknown."),
                ),
                ("rows_in", models.BigIntegerField(db_default=0, default=0, help_text="Rows read, over all tables.")),
                (
                    "rows_out",
                    models.BigIntegerField(db_default=0, default=0, help_text="Rows written, over all tables."),
                ),
                (
                    "late_rows",
                    models.BigIntegerField(
                        db_default=0, default=0, help_text="Messages of a day before the one of the previous run."
                    ),
                ),
                ("bytes", models.BigIntegerField(db_default=0, default=0, help_text="Bytes of Parquet written.")),
                (
                    "figures",
                    models.JSONField(
                        default=dict,
                        help_text="Rows in and out by table, seconds by stage, the chains' verdicts, and the like.",
                    ),
                ),
                (
                    "warnings",
                    models.JSONField(default=list, help_text="Warnings for the operator, a sentence each."),
                ),
                ("error", models.TextField(blank=True, help_text="The error of a failed run.")),
                ("log", models.TextField(blank=True, help_text="The path of Spark's log, on the host.")),
            ],
            options={
                "verbose_name": "ETL run",
                "ordering": ("-id",),
                "indexes": [models.Index(fields=["output", "-id"], name="etlrun_output")],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            ("state__in", ["queued", "running", "succeeded", "failed", "cancelled", "lost"])
                        ),
                        name="etlrun_state_known",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("state__in", ("queued", "running"))),
                        fields=("output",),
                        name="etlrun_one_at_a_time",
                        violation_error_message="Another run writes to this output.",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("ended_at__isnull", True), ("state__in", ("queued", "running"))),
                            models.Q(
                                models.Q(("state__in", ("queued", "running")), _negated=True),
                                ("ended_at__isnull", False),
                            ),
                            _connector="OR",
                        ),
                        name="etlrun_ended",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Rollup",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("hour", models.DateTimeField()),
                ("queue", models.TextField(help_text="The queue's name.")),
                ("acknowledged", models.BigIntegerField(db_default=0)),
                ("expired", models.BigIntegerField(db_default=0)),
                ("purged", models.BigIntegerField(db_default=0)),
                ("dropped", models.BigIntegerField(db_default=0)),
                ("removed", models.BigIntegerField(db_default=0)),
                ("dead_letters", models.BigIntegerField(db_default=0)),
                ("attempts", models.BigIntegerField(db_default=0, help_text="Deliveries that ended without success.")),
                ("bytes", models.BigIntegerField(db_default=0, help_text="Bytes of payloads.")),
                ("deliver_p50", models.FloatField(null=True)),
                ("deliver_p95", models.FloatField(null=True)),
                ("deliver_p99", models.FloatField(null=True)),
                ("settle_p50", models.FloatField(null=True)),
                ("settle_p95", models.FloatField(null=True)),
                ("settle_p99", models.FloatField(null=True)),
                ("dead_reasons", models.JSONField(default=list)),
                ("producers", models.JSONField(default=list, help_text="API keys that published most.")),
                ("consumers", models.JSONField(default=list, help_text="API keys that acknowledged most.")),
                ("computed_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={
                "ordering": ("-hour", "queue"),
                "indexes": [models.Index(fields=["queue", "hour"], name="rollup_queue")],
                "constraints": [models.UniqueConstraint(fields=("hour", "queue"), name="rollup_once")],
            },
        ),
        migrations.RunSQL((SQL / "0010_etl.sql").read_text(), (SQL / "0010_etl_reverse.sql").read_text()),
    ]
