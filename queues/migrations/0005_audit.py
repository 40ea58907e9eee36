from pathlib import Path

import django.db.models.deletion
from django.db import migrations, models
from django.db.models.functions import Now

SQL = Path(__file__).parent / "sql"


class Migration(migrations.Migration):
    dependencies = [("queues", "0004_periodic_jobs_and_workers")]

    operations = [
        migrations.CreateModel(
            name="AuditChain",
            fields=[
                ("id", models.AutoField(primary_key=True, serialize=False)),
                ("name", models.TextField(unique=True)),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
            ],
            options={
                "ordering": ("name",),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("name", ""), _negated=True), name="auditchain_name_not_empty"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="AuditHead",
            fields=[
                (
                    "chain",
                    models.OneToOneField(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        primary_key=True,
                        related_name="head",
                        serialize=False,
                        to="queues.auditchain",
                    ),
                ),
                (
                    "next_seq",
                    models.BigIntegerField(
                        help_text="The number of the next row, which is the count of rows so far."
                    ),
                ),
                (
                    "hash",
                    models.BinaryField(help_text="The last row's hash; at first that of nothing.", max_length=32),
                ),
                ("last_at", models.DateTimeField(help_text="The last row's time.", null=True)),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(condition=models.Q(("next_seq__gte", 0)), name="audithead_next_seq")
                ],
            },
        ),
        migrations.CreateModel(
            name="AuditRow",
            fields=[
                (
                    "chain",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="rows",
                        to="queues.auditchain",
                    ),
                ),
                (
                    "seq",
                    models.BigIntegerField(
                        help_text="0, 1, 2 and so on, in each chain.", primary_key=True, serialize=False
                    ),
                ),
                ("at", models.DateTimeField(help_text="The time of the append; not part of the hash.")),
                ("event", models.TextField(help_text="The kind of the event, such as send, deliver or ack.")),
                ("record_id", models.TextField(help_text="The object: a message's key, a queue.", verbose_name="id")),
                ("sender", models.TextField(verbose_name="from")),
                ("recipient", models.TextField(verbose_name="to")),
                (
                    "hash",
                    models.BinaryField(help_text="BLAKE3 of the row before's hash and this event.", max_length=32),
                ),
            ],
            options={"db_table": "queues_audit", "ordering": ("chain", "seq")},
        ),
        migrations.CreateModel(
            name="AuditAnchor",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "chain",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="anchors",
                        to="queues.auditchain",
                    ),
                ),
                ("number", models.BigIntegerField(help_text="1, 2, 3 and so on, in each chain.")),
                ("seq", models.BigIntegerField()),
                ("hash", models.BinaryField(max_length=32)),
                ("at", models.DateTimeField()),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("interval", "periodic"),
                            ("retention", "rows up to it were dropped"),
                            ("manual", "by hand"),
                        ],
                        max_length=9,
                    ),
                ),
                (
                    "previous",
                    models.BinaryField(
                        help_text="SHA-256 of the signature before; of nothing for the first.", max_length=32
                    ),
                ),
                ("key", models.CharField(help_text="The fingerprint of the public key.", max_length=32)),
                ("signature", models.BinaryField(help_text="Ed25519.", max_length=64)),
            ],
            options={
                "ordering": ("chain", "number"),
                "constraints": [
                    models.UniqueConstraint(fields=("chain", "number"), name="auditanchor_number"),
                    models.CheckConstraint(
                        condition=models.Q(("number__gte", 1), ("seq__gte", 0)), name="auditanchor_numbers"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("kind__in", ["interval", "retention", "manual"])), name="auditanchor_kind"
                    ),
                ],
                "indexes": [models.Index(fields=["chain", "seq"], name="auditanchor_seq")],
            },
        ),
        migrations.CreateModel(
            name="AuditVerification",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "chain",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="verifications",
                        to="queues.auditchain",
                    ),
                ),
                ("at", models.DateTimeField(db_default=Now())),
                ("ok", models.BooleanField()),
                ("rows", models.BigIntegerField(help_text="Rows verified.")),
                (
                    "broken_seq",
                    models.BigIntegerField(help_text="The first broken row.", null=True),
                ),
                (
                    "finding",
                    models.TextField(blank=True, help_text="The fault of that row; empty: none."),
                ),
                ("seconds", models.FloatField()),
            ],
            options={
                "ordering": ("-at", "-id"),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("broken_seq__isnull", True), ("finding", ""), ("ok", True)),
                            models.Q(("ok", False), models.Q(("finding", ""), _negated=True)),
                            _connector="OR",
                        ),
                        name="auditverification_says_why",
                    )
                ],
                "indexes": [models.Index(fields=["chain", "-at"], name="auditverification_chain")],
            },
        ),
        migrations.CreateModel(
            name="AuditJournalEntry",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("chain", models.TextField(help_text="The chain's name; there may be no such chain yet.")),
                ("event", models.TextField()),
                ("record_id", models.TextField(verbose_name="id")),
                ("sender", models.TextField(verbose_name="from")),
                ("recipient", models.TextField(verbose_name="to")),
            ],
            options={
                "db_table": "queues_auditjournal",
                "ordering": ("id",),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("chain", ""), _negated=True), name="auditjournal_chain_not_empty"
                    )
                ],
                "indexes": [models.Index(fields=["chain", "id"], name="auditjournal_chain")],
            },
        ),
        migrations.RunSQL(
            (SQL / "0005_audit.sql").read_text(encoding="utf-8"),
            (SQL / "0005_audit_reverse.sql").read_text(encoding="utf-8"),
        ),
    ]
