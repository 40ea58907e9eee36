"""The tables: Django's, and in SQL what Django cannot make (partitions, views, functions, triggers).

The development versions before had 47 migrations, of which the first had this name. A database that all of them were
applied to has these tables; another is refused by a check (fivewire.E006).
"""

import datetime
import uuid
from pathlib import Path

import django.contrib.postgres.fields
import django.contrib.postgres.indexes
import django.core.validators
import django.db.models.deletion
import django.db.models.functions.comparison
import django.db.models.functions.datetime
from django.db import migrations, models

import queues.models.cron_schedule
import queues.models.etl_schedule
import queues.models.periodic
import queues.models.queue

SQL = Path(__file__).parent / "sql"

#: In this order: later ones use the tables and functions of earlier ones.
PARTS = ("messages", "counts", "rotation", "archive", "audit", "topology", "nodes", "consumers", "celery", "etl")


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="ApiKey",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=100, unique=True)),
                (
                    "digest",
                    models.CharField(editable=False, help_text="HMAC-SHA-256 of the key.", max_length=64, unique=True),
                ),
                ("hint", models.CharField(editable=False, help_text="The first characters of the key.", max_length=8)),
                (
                    "protocols",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=16), blank=True, default=list, size=None
                    ),
                ),
                (
                    "publish",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=255), blank=True, default=list, size=None
                    ),
                ),
                (
                    "consume",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=255), blank=True, default=list, size=None
                    ),
                ),
                (
                    "manage",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=255), blank=True, default=list, size=None
                    ),
                ),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
                ),
                ("revoked_at", models.DateTimeField(editable=False, null=True)),
                (
                    "old_digest",
                    models.CharField(
                        editable=False,
                        help_text="Of the value before the last rotation.",
                        max_length=64,
                        null=True,
                        unique=True,
                    ),
                ),
                (
                    "old_until",
                    models.DateTimeField(
                        editable=False,
                        help_text="Until then that value is accepted too.",
                        null=True,
                        verbose_name="old value until",
                    ),
                ),
            ],
            options={
                "verbose_name": "API key",
                "ordering": ("name",),
            },
        ),
        migrations.CreateModel(
            name="Node",
            fields=[
                ("id", models.AutoField(primary_key=True, serialize=False)),
                ("name", models.CharField(help_text="Program and host.", max_length=255)),
                ("host", models.CharField(max_length=255)),
                ("pid", models.IntegerField()),
                ("started_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "first_message_id",
                    models.BigIntegerField(help_text="Every message this node inserted has a greater id."),
                ),
            ],
            options={
                "ordering": ("id",),
                "permissions": (("end_backend", "Can end a database session that holds back vacuum"),),
            },
        ),
        migrations.CreateModel(
            name="Queue",
            fields=[
                ("id", models.AutoField(primary_key=True, serialize=False)),
                (
                    "name",
                    models.CharField(help_text="Names beginning with _ are the system's.", max_length=255, unique=True),
                ),
                ("uuid", models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                (
                    "kind",
                    models.CharField(
                        choices=[("queue", "queue"), ("subscription", "subscription"), ("mailbox", "mailbox")],
                        db_default="queue",
                        default="queue",
                        editable=False,
                        max_length=16,
                    ),
                ),
                (
                    "paused",
                    models.BooleanField(
                        db_default=False, default=False, help_text="Nothing is delivered while paused."
                    ),
                ),
                (
                    "refuse_when_paused",
                    models.BooleanField(
                        db_default=False,
                        default=False,
                        help_text="While paused, refuse consumers, where the protocol can.",
                    ),
                ),
                (
                    "concurrency_limit",
                    models.PositiveIntegerField(
                        blank=True, help_text="Maximum number of leased messages at a time, over all nodes.", null=True
                    ),
                ),
                (
                    "single_active_consumer",
                    models.BooleanField(
                        db_default=False,
                        default=False,
                        help_text=(
                            "One consumer at a time is given messages, over all nodes; the others wait for its end."
                        ),
                    ),
                ),
                (
                    "max_attempts",
                    models.PositiveSmallIntegerField(
                        default=queues.models.queue.default_max_attempts,
                        help_text="Deliveries before a message becomes a dead letter; 0: without limit.",
                    ),
                ),
                (
                    "retry_backoff",
                    models.DurationField(
                        default=queues.models.queue.default_retry_backoff,
                        help_text="Wait before the second delivery; doubles with each further one.",
                    ),
                ),
                (
                    "retry_backoff_cap",
                    models.DurationField(
                        db_default=datetime.timedelta(seconds=3600),
                        default=datetime.timedelta(seconds=3600),
                        help_text="Longest wait between two deliveries.",
                    ),
                ),
                (
                    "ack_timeout",
                    models.DurationField(
                        blank=True,
                        default=queues.models.queue.default_ack_timeout,
                        help_text="How long a consumer may hold a message; empty: as long as it is connected.",
                        null=True,
                    ),
                ),
                (
                    "message_ttl",
                    models.DurationField(
                        blank=True,
                        help_text="How long a message may wait before it expires; empty: for ever.",
                        null=True,
                    ),
                ),
                (
                    "max_length",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="Most messages held, dead letters not counted; empty: without limit.",
                        null=True,
                    ),
                ),
                (
                    "overflow",
                    models.CharField(
                        choices=[("reject", "reject the new message"), ("drop-oldest", "drop the oldest message")],
                        db_default="reject",
                        default="reject",
                        max_length=16,
                    ),
                ),
                (
                    "retention",
                    models.CharField(
                        choices=[
                            ("none", "nothing"),
                            ("metadata", "metadata"),
                            ("full", "metadata, headers and payload"),
                        ],
                        db_default="metadata",
                        default="metadata",
                        help_text="The part of a finished message that the archive keeps.",
                        max_length=16,
                    ),
                ),
                (
                    "allow_job_overrides",
                    models.BooleanField(
                        db_default=True,
                        default=True,
                        help_text="Whether a job may have its own maximum of attempts and retry interval.",
                    ),
                ),
                (
                    "audited",
                    models.BooleanField(
                        db_default=False,
                        default=False,
                        help_text="Record the events of each message in the queue's own audit chain.",
                    ),
                ),
                (
                    "dead_letter_queue",
                    models.ForeignKey(
                        blank=True,
                        help_text="Queue for dead letters; empty: they stay in this queue.",
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="queues.queue",
                    ),
                ),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
                ),
            ],
            options={
                "ordering": ("name",),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("name", ""), _negated=True), name="queue_name_not_empty"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("kind__in", ["queue", "subscription", "mailbox"])), name="queue_kind_known"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("overflow__in", ["reject", "drop-oldest"])), name="queue_overflow_known"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("retention__in", ["none", "metadata", "full"])),
                        name="queue_retention_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("audited", False), models.Q(("kind", "mailbox"), _negated=True), _connector="OR"
                        ),
                        name="queue_mailbox_not_audited",
                        violation_error_message="Letters between peers are recorded in the chain peerbus.",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("single_active_consumer", False),
                            models.Q(("kind", "mailbox"), _negated=True),
                            _connector="OR",
                        ),
                        name="queue_mailbox_has_one_consumer",
                        violation_error_message="A peer's mailbox has one consumer anyway.",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("concurrency_limit", None), ("concurrency_limit__gte", 1), _connector="OR"),
                        name="queue_concurrency_positive",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("max_length", None), ("max_length__gte", 1), _connector="OR"),
                        name="queue_length_positive",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("retry_backoff__gte", datetime.timedelta(0))),
                        name="queue_backoff_not_negative",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("dead_letter_queue", None),
                            models.Q(("dead_letter_queue", models.F("id")), _negated=True),
                            _connector="OR",
                        ),
                        name="queue_not_its_own_dead_letter_queue",
                    ),
                ],
            },
        ),
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.CreateModel(
                    name="Message",
                    fields=[
                        ("id", models.BigIntegerField(primary_key=True, serialize=False)),
                        (
                            "queue",
                            models.ForeignKey(
                                db_constraint=False,
                                db_index=False,
                                on_delete=django.db.models.deletion.DO_NOTHING,
                                related_name="messages",
                                to="queues.queue",
                            ),
                        ),
                        (
                            "state",
                            models.SmallIntegerField(
                                choices=[
                                    (0, "ready"),
                                    (1, "leased"),
                                    (2, "delayed"),
                                    (3, "dead"),
                                    (4, "dead, being read"),
                                ]
                            ),
                        ),
                        (
                            "attempts",
                            models.SmallIntegerField(db_default=0, help_text="Deliveries that ended without success."),
                        ),
                        (
                            "max_attempts",
                            models.SmallIntegerField(help_text="Overrides the queue's; 0: without limit.", null=True),
                        ),
                        (
                            "node",
                            models.ForeignKey(
                                db_constraint=False,
                                db_index=False,
                                null=True,
                                on_delete=django.db.models.deletion.DO_NOTHING,
                                related_name="+",
                                to="queues.node",
                            ),
                        ),
                        (
                            "producer",
                            models.ForeignKey(
                                db_constraint=False,
                                db_index=False,
                                null=True,
                                on_delete=django.db.models.deletion.DO_NOTHING,
                                related_name="+",
                                to="queues.apikey",
                            ),
                        ),
                        ("published_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                        ("due_at", models.DateTimeField(help_text="When a delayed message becomes ready.", null=True)),
                        ("expires_at", models.DateTimeField(null=True)),
                        ("dead_at", models.DateTimeField(null=True)),
                        ("origin_id", models.BigIntegerField(null=True)),
                        (
                            "tag",
                            models.BigIntegerField(
                                help_text="The delivery tag it keeps while it waits to go out again.", null=True
                            ),
                        ),
                        (
                            "content",
                            models.SmallIntegerField(
                                choices=[
                                    (1, "application/msgpack"),
                                    (2, "application/json"),
                                    (3, "application/vnd.peerbus.v1+json"),
                                    (4, "application/vnd.fivewire.celery"),
                                ],
                                help_text="Type of the payload; empty: bytes.",
                                null=True,
                            ),
                        ),
                        (
                            "retry_interval",
                            models.IntegerField(
                                help_text="Milliseconds; overrides the queue's retry backoff.", null=True
                            ),
                        ),
                        (
                            "key",
                            models.TextField(
                                help_text="Public key; unique in the queue while the message lives.", null=True
                            ),
                        ),
                        ("headers", models.JSONField(null=True)),
                        ("error", models.TextField(help_text="The error of the last failed delivery.", null=True)),
                        ("payload", models.BinaryField()),
                    ],
                    options={
                        "db_table": "queues_openmessage",
                        "ordering": ("id",),
                        "indexes": [
                            models.Index(
                                condition=models.Q(("state", 0)), fields=["queue", "id"], name="message_ready"
                            ),
                            models.Index(condition=models.Q(("state", 3)), fields=["queue", "id"], name="message_dead"),
                            models.Index(
                                condition=models.Q(("state", 2)), fields=["queue", "id"], name="message_delayed"
                            ),
                            models.Index(condition=models.Q(("state", 2)), fields=["due_at"], name="message_due"),
                            models.Index(
                                condition=models.Q(("expires_at__isnull", False)),
                                fields=["expires_at"],
                                name="message_expiry",
                            ),
                            models.Index(
                                condition=models.Q(("origin_id__isnull", False)),
                                fields=["origin_id"],
                                name="message_origin",
                            ),
                            models.Index(
                                condition=models.Q(("tag__isnull", False)), fields=["queue", "tag"], name="message_tag"
                            ),
                        ],
                        "constraints": [
                            models.CheckConstraint(
                                condition=models.Q(("state__in", [0, 1, 2, 3, 4])), name="message_state_known"
                            ),
                            models.CheckConstraint(
                                condition=models.Q(
                                    models.Q(("due_at__isnull", False), ("state", 2)),
                                    models.Q(("state", 2), _negated=True),
                                    _connector="OR",
                                ),
                                name="message_delayed_has_due_time",
                            ),
                            models.CheckConstraint(
                                condition=models.Q(
                                    models.Q(("node__isnull", False), ("state__in", (1, 4))),
                                    models.Q(models.Q(("state__in", (1, 4)), _negated=True), ("node__isnull", True)),
                                    _connector="OR",
                                ),
                                name="message_leased_has_node",
                            ),
                            models.UniqueConstraint(
                                condition=models.Q(("key__isnull", False)), fields=("queue", "key"), name="message_key"
                            ),
                        ],
                    },
                ),
            ],
        ),
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.CreateModel(
                    name="ArchivedMessage",
                    fields=[
                        ("id", models.BigIntegerField(primary_key=True, serialize=False)),
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
                            "outcome",
                            models.SmallIntegerField(
                                choices=[
                                    (0, "acknowledged"),
                                    (1, "expired"),
                                    (2, "purged"),
                                    (3, "dropped: the queue was full"),
                                    (4, "removed by an operator"),
                                ]
                            ),
                        ),
                        ("attempts", models.SmallIntegerField(help_text="Deliveries that ended without success.")),
                        ("producer_id", models.BigIntegerField(help_text="API key that published it.", null=True)),
                        ("consumer_id", models.BigIntegerField(help_text="API key that acknowledged it.", null=True)),
                        ("published_at", models.DateTimeField()),
                        ("delivered_at", models.DateTimeField(help_text="The last delivery.", null=True)),
                        ("finished_at", models.DateTimeField()),
                        ("size", models.IntegerField(help_text="Bytes of the payload.")),
                        ("key", models.TextField(null=True)),
                        ("headers", models.JSONField(null=True)),
                        ("payload", models.BinaryField(null=True)),
                        ("max_attempts", models.SmallIntegerField(help_text="Its own; empty: the queue's.", null=True)),
                        (
                            "retry_interval",
                            models.IntegerField(
                                help_text="Its own, in milliseconds; empty: the queue's backoff.", null=True
                            ),
                        ),
                        (
                            "due_at",
                            models.DateTimeField(help_text="The scheduled time of its last attempt.", null=True),
                        ),
                        (
                            "content",
                            models.SmallIntegerField(
                                choices=[
                                    (1, "application/msgpack"),
                                    (2, "application/json"),
                                    (3, "application/vnd.peerbus.v1+json"),
                                    (4, "application/vnd.fivewire.celery"),
                                ],
                                help_text="Type of the payload; empty: bytes.",
                                null=True,
                            ),
                        ),
                        ("job", models.BooleanField(help_text="A worker did it.", null=True)),
                        ("result", models.BinaryField(help_text="The worker's result, as MessagePack.", null=True)),
                        (
                            "xid",
                            models.BigIntegerField(
                                db_default=django.db.models.functions.comparison.Cast(
                                    django.db.models.functions.comparison.Cast(
                                        models.Func(function="pg_current_xact_id"), models.TextField()
                                    ),
                                    models.BigIntegerField(),
                                ),
                                help_text="The transaction that wrote it; 0: before this column.",
                            ),
                        ),
                    ],
                    options={
                        "db_table": "queues_archive",
                        "ordering": ("-finished_at",),
                        "indexes": [
                            models.Index(condition=models.Q(("job", True)), fields=["queue", "id"], name="archive_job")
                        ],
                    },
                ),
            ],
        ),
        migrations.CreateModel(
            name="AuditChain",
            fields=[
                ("id", models.AutoField(primary_key=True, serialize=False)),
                ("name", models.TextField(unique=True)),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
                ),
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
        migrations.SeparateDatabaseAndState(
            state_operations=[
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
                            models.BinaryField(
                                help_text="The last row's hash; at first that of nothing.", max_length=32
                            ),
                        ),
                        ("last_at", models.DateTimeField(help_text="The last row's time.", null=True)),
                    ],
                    options={
                        "constraints": [
                            models.CheckConstraint(condition=models.Q(("next_seq__gte", 0)), name="audithead_next_seq")
                        ],
                    },
                ),
            ],
        ),
        migrations.SeparateDatabaseAndState(
            state_operations=[
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
                        (
                            "record_id",
                            models.TextField(help_text="The object: a message's key, a queue.", verbose_name="id"),
                        ),
                        ("sender", models.TextField(verbose_name="from")),
                        ("recipient", models.TextField(verbose_name="to")),
                        (
                            "hash",
                            models.BinaryField(
                                help_text="BLAKE3 of the row before's hash and this event.", max_length=32
                            ),
                        ),
                    ],
                    options={
                        "db_table": "queues_audit",
                        "ordering": ("chain", "seq"),
                    },
                ),
            ],
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
                "indexes": [models.Index(fields=["chain", "seq"], name="auditanchor_seq")],
                "constraints": [
                    models.UniqueConstraint(fields=("chain", "number"), name="auditanchor_number"),
                    models.CheckConstraint(
                        condition=models.Q(("number__gte", 1), ("seq__gte", 0)), name="auditanchor_numbers"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("kind__in", ["interval", "retention", "manual"])), name="auditanchor_kind"
                    ),
                ],
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
                ("at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("ok", models.BooleanField()),
                ("rows", models.BigIntegerField(help_text="Rows verified.")),
                ("broken_seq", models.BigIntegerField(help_text="The first broken row.", null=True)),
                ("finding", models.TextField(blank=True, help_text="The fault of that row; empty: none.")),
                ("seconds", models.FloatField()),
            ],
            options={
                "ordering": ("-at", "-id"),
                "indexes": [models.Index(fields=["chain", "-at"], name="auditverification_chain")],
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
                "indexes": [models.Index(fields=["chain", "id"], name="auditjournal_chain")],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("chain", ""), _negated=True), name="auditjournal_chain_not_empty"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="BulkOperation",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "action",
                    models.CharField(
                        choices=[
                            ("copy", "copy to another queue"),
                            ("move", "move to another queue"),
                            ("put-back", "put dead letters back where they came from"),
                            ("delay", "delay"),
                            ("deliver-now", "deliver delayed ones now"),
                            ("remove", "delete"),
                        ],
                        max_length=16,
                    ),
                ),
                ("criteria", models.JSONField(help_text="What is looked for, as queues.operations.search has it.")),
                (
                    "target",
                    models.CharField(
                        blank=True, help_text="The queue to which they are moved or copied.", max_length=255
                    ),
                ),
                ("delay", models.FloatField(help_text="Seconds.", null=True)),
                ("by", models.TextField(help_text="The operator.")),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("running", "running"),
                            ("done", "done"),
                            ("cancelled", "cancelled"),
                            ("failed", "failed"),
                        ],
                        default="running",
                        max_length=16,
                    ),
                ),
                ("cursor", models.TextField(blank=True, help_text="Where the search goes on.")),
                (
                    "high",
                    models.BigIntegerField(help_text="Messages with a greater id arrived later, and are left alone."),
                ),
                (
                    "expected",
                    models.BigIntegerField(
                        help_text="How many the preview found; empty: it did not see all.", null=True
                    ),
                ),
                ("looked", models.BigIntegerField(default=0)),
                ("done", models.BigIntegerField(default=0)),
                ("skipped", models.BigIntegerField(default=0, help_text="Found, and left alone.")),
                ("error", models.TextField(blank=True)),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("ended_at", models.DateTimeField(null=True)),
            ],
            options={
                "ordering": ("-id",),
                "indexes": [models.Index(condition=models.Q(("state", "running")), fields=["id"], name="bulk_running")],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            ("action__in", ["copy", "move", "put-back", "delay", "deliver-now", "remove"])
                        ),
                        name="bulk_action_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("ended_at__isnull", True), ("state", "running")),
                            models.Q(
                                ("ended_at__isnull", False),
                                ("state__in", ["running", "done", "cancelled", "failed"]),
                                models.Q(("state", "running"), _negated=True),
                            ),
                            _connector="OR",
                        ),
                        name="bulk_state_known",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Connection",
            fields=[
                (
                    "id",
                    models.BigIntegerField(
                        help_text="The node's id, and the connection's number there.", primary_key=True, serialize=False
                    ),
                ),
                (
                    "node",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="connections",
                        to="queues.node",
                    ),
                ),
                (
                    "protocol",
                    models.TextField(
                        choices=[("overhop", "overhop"), ("blipmq", "blipmq"), ("sspq", "sspq"), ("peerbus", "peerbus")]
                    ),
                ),
                ("address", models.TextField(help_text="The remote address and port.")),
                ("name", models.TextField(blank=True, help_text="A worker's or a peer's name.")),
                (
                    "key",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="queues.apikey",
                        verbose_name="API key",
                    ),
                ),
                ("connected_at", models.DateTimeField()),
                ("messages_in", models.BigIntegerField(help_text="Messages that it has published.")),
                ("messages_out", models.BigIntegerField(help_text="Messages that were delivered to it.")),
                ("in_rate", models.FloatField(help_text="Messages a second.")),
                ("out_rate", models.FloatField(help_text="Messages a second.")),
                ("rate", models.FloatField(help_text="Messages a second in both directions.")),
                ("unacked", models.BigIntegerField(help_text="Messages that it was given and has not settled.")),
                (
                    "held_bytes",
                    models.BigIntegerField(help_text="Bytes received and not handled, and sent and not taken."),
                ),
            ],
            options={
                "ordering": ("id",),
            },
        ),
        migrations.CreateModel(
            name="ConnectionTotal",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "node_id", "protocol", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                (
                    "node",
                    models.ForeignKey(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="queues.node",
                    ),
                ),
                ("protocol", models.TextField()),
                ("connections", models.IntegerField()),
                ("in_rate", models.FloatField(help_text="Messages a second.")),
                ("out_rate", models.FloatField(help_text="Messages a second.")),
                (
                    "at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), help_text="When the node told of it."
                    ),
                ),
            ],
            options={
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="ApiKeyUse",
            fields=[
                (
                    "key",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="use",
                        serialize=False,
                        to="queues.apikey",
                    ),
                ),
                ("at", models.DateTimeField()),
                ("protocol", models.TextField()),
                ("address", models.TextField(blank=True)),
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
                ("warnings", models.JSONField(default=list, help_text="Warnings for the operator, a sentence each.")),
                ("error", models.TextField(blank=True, help_text="The error of a failed run.")),
                ("log", models.TextField(blank=True, help_text="The path of Spark's log, on the host.")),
                (
                    "restart_of",
                    models.ForeignKey(
                        help_text="The lost run that this repeats.",
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="restarts",
                        to="queues.etlrun",
                    ),
                ),
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
            name="EtlWitness",
            fields=[
                ("output", models.TextField(primary_key=True, serialize=False)),
                ("token", models.UUIDField()),
                ("previous", models.UUIDField(help_text="The token before it, for a run that failed.", null=True)),
                ("at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
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
                ("next_run_at", models.DateTimeField(editable=False, null=True)),
                ("last_run_at", models.DateTimeField(editable=False, null=True)),
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
                        help_text=(
                            "Of JSON bodies, as Spark's DDL: order_id BIGINT, total DOUBLE. Empty: one column of text."
                        ),
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
            name="JobLogLine",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
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
                ("message_id", models.BigIntegerField(help_text="The job's first id.")),
                ("at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("line", models.TextField()),
            ],
            options={
                "db_table": "queues_joblog",
                "ordering": ("id",),
                "indexes": [
                    models.Index(fields=["message_id", "id"], name="joblog_message"),
                    django.contrib.postgres.indexes.BrinIndex(fields=["at"], name="joblog_at"),
                ],
            },
        ),
        migrations.CreateModel(
            name="Mailbox",
            fields=[
                (
                    "queue",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="mailbox",
                        serialize=False,
                        to="queues.queue",
                    ),
                ),
                ("name", models.TextField(db_collation="C", unique=True)),
                (
                    "owner",
                    models.ForeignKey(
                        blank=True,
                        help_text="The API key that owns the name; empty: the next one to connect.",
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="mailboxes",
                        to="queues.apikey",
                    ),
                ),
                (
                    "node",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        help_text="The node of its connection; empty: not connected.",
                        null=True,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="mailboxes",
                        to="queues.node",
                    ),
                ),
                ("connection", models.BigIntegerField(help_text="The number of its connection.", null=True)),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("connected_at", models.DateTimeField(help_text="The last connect.", null=True)),
                ("left_at", models.DateTimeField(help_text="The last disconnect.", null=True)),
            ],
            options={
                "verbose_name": "peer",
                "ordering": ("name",),
                "indexes": [
                    models.Index(
                        condition=models.Q(("node__isnull", False)), fields=["node"], name="mailbox_connected"
                    ),
                    models.Index(condition=models.Q(("owner__isnull", False)), fields=["owner"], name="mailbox_owner"),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("name", ""), _negated=True), name="mailbox_name_not_empty"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("connection__isnull", True), ("node__isnull", True)),
                            models.Q(("connection__isnull", False), ("node__isnull", False)),
                            _connector="OR",
                        ),
                        name="mailbox_connection_has_node",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="SeenLetter",
            fields=[
                ("id", models.BinaryField(help_text="The id as UTF-8.", primary_key=True, serialize=False)),
                ("at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={
                "db_table": "queues_letterseen",
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("id", b""), _negated=True), name="letterseen_id_not_empty"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Interest",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "queue",
                    models.ForeignKey(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="interests",
                        to="queues.queue",
                    ),
                ),
                (
                    "node",
                    models.ForeignKey(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="interests",
                        to="queues.node",
                    ),
                ),
                ("since", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("queue", "node"), name="interest_once")],
            },
        ),
        migrations.CreateModel(
            name="Consumer",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "queue",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="line",
                        to="queues.queue",
                    ),
                ),
                (
                    "node",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="queues.node",
                    ),
                ),
                ("connection", models.BigIntegerField(help_text="The id of its client's connection.", null=True)),
                ("name", models.TextField(help_text="The protocol, and the client's address and name.")),
                ("active", models.BooleanField(db_default=False)),
                ("since", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("active_since", models.DateTimeField(null=True)),
            ],
            options={
                "ordering": ("id",),
                "default_permissions": (),
                "indexes": [
                    models.Index(fields=["queue", "id"], name="consumer_line"),
                    models.Index(fields=["node"], name="consumer_node"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("active", True)), fields=("queue",), name="consumer_active_once"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="QueueCount",
            fields=[
                (
                    "queue",
                    models.OneToOneField(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="count",
                        serialize=False,
                        to="queues.queue",
                    ),
                ),
                ("ready", models.BigIntegerField(db_default=0, default=0)),
                ("leased", models.BigIntegerField(db_default=0, default=0)),
                ("delayed", models.BigIntegerField(db_default=0, default=0)),
                ("dead", models.BigIntegerField(db_default=0, default=0)),
                (
                    "published",
                    models.BigIntegerField(db_default=0, default=0, help_text="Messages ever stored in this queue."),
                ),
                ("completed", models.BigIntegerField(db_default=0, default=0, help_text="Messages ever acknowledged.")),
                ("settled", models.BigIntegerField(db_default=0, default=0, help_text="Messages ever settled.")),
            ],
        ),
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.CreateModel(
                    name="QueueTally",
                    fields=[
                        (
                            "id",
                            models.BigAutoField(
                                auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                            ),
                        ),
                        (
                            "queue",
                            models.ForeignKey(
                                db_constraint=False,
                                db_index=False,
                                on_delete=django.db.models.deletion.CASCADE,
                                related_name="+",
                                to="queues.queue",
                            ),
                        ),
                        ("ready", models.IntegerField(db_default=0)),
                        ("leased", models.IntegerField(db_default=0)),
                        ("delayed", models.IntegerField(db_default=0)),
                        ("dead", models.IntegerField(db_default=0)),
                        ("published", models.IntegerField(db_default=0)),
                        ("completed", models.IntegerField(db_default=0)),
                        ("settled", models.IntegerField(db_default=0)),
                    ],
                    options={
                        "verbose_name_plural": "queue tallies",
                        "indexes": [models.Index(fields=["queue", "id"], name="tally_queue")],
                    },
                ),
            ],
        ),
        migrations.CreateModel(
            name="PeriodicJob",
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
                ("next_run_at", models.DateTimeField(editable=False, null=True)),
                ("last_run_at", models.DateTimeField(editable=False, null=True)),
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
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
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
        migrations.CreateModel(
            name="QueueSample",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("queue", models.IntegerField(help_text="The queue's id; 0: all queues.")),
                ("at", models.DateTimeField(help_text="The end of the period, to the minute.")),
                ("hourly", models.BooleanField(db_default=False)),
                (
                    "seconds",
                    models.FloatField(help_text="The time that the differences cover; after a gap more than a minute."),
                ),
                (
                    "ready",
                    models.BigIntegerField(help_text="Held at the end of the period, as leased, delayed and dead."),
                ),
                ("leased", models.BigIntegerField()),
                ("delayed", models.BigIntegerField()),
                ("dead", models.BigIntegerField()),
                (
                    "peak",
                    models.BigIntegerField(
                        help_text="The most messages that any of its minutes ended with, dead letters aside."
                    ),
                ),
                ("published", models.BigIntegerField(help_text="Messages stored in the period.")),
                ("settled", models.BigIntegerField(help_text="Messages that left for good in the period.")),
                ("died", models.BigIntegerField(help_text="Messages that became dead letters and were still there.")),
                ("last_node", models.BigIntegerField(help_text="The last node's id; only for all queues.", null=True)),
                (
                    "database_bytes",
                    models.BigIntegerField(help_text="The size of the database; only for all queues.", null=True),
                ),
            ],
            options={
                "verbose_name": "history",
                "verbose_name_plural": "history",
                "indexes": [models.Index(fields=["at"], name="queuesample_at")],
                "constraints": [models.UniqueConstraint(fields=("queue", "at", "hourly"), name="queuesample_once")],
            },
        ),
        migrations.CreateModel(
            name="SampleMark",
            fields=[
                ("queue", models.IntegerField(primary_key=True, serialize=False)),
                ("at", models.DateTimeField()),
                ("ready", models.BigIntegerField()),
                ("leased", models.BigIntegerField()),
                ("delayed", models.BigIntegerField()),
                ("dead", models.BigIntegerField()),
                ("published", models.BigIntegerField()),
                ("settled", models.BigIntegerField()),
            ],
        ),
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
                ("worker_ids", models.JSONField(default=list, help_text="The worker of each attempt.")),
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
        migrations.CreateModel(
            name="Topology",
            fields=[
                ("id", models.SmallIntegerField(db_default=1, default=1, primary_key=True, serialize=False)),
                ("version", models.BigIntegerField(db_default=1, default=1)),
            ],
            options={
                "verbose_name_plural": "topologies",
                "constraints": [models.CheckConstraint(condition=models.Q(("id", 1)), name="topology_one_row")],
            },
        ),
        migrations.CreateModel(
            name="Subscription",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("topic", models.BinaryField(help_text="The topic's exact bytes, UTF-8.")),
                ("qos", models.SmallIntegerField()),
                (
                    "queue",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE, related_name="subscription", to="queues.queue"
                    ),
                ),
                (
                    "owner",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.SET_NULL, related_name="+", to="queues.apikey"
                    ),
                ),
                (
                    "next_tag",
                    models.BigIntegerField(db_default=1, default=1, help_text="Delivery tags below this one are used."),
                ),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "used_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), help_text="Last polled, to the minute."
                    ),
                ),
            ],
            options={
                "ordering": ("id",),
                "indexes": [django.contrib.postgres.indexes.HashIndex(fields=["topic"], name="subscription_topic")],
                "constraints": [
                    models.CheckConstraint(condition=models.Q(("qos__in", (0, 1))), name="subscription_qos_known"),
                    models.CheckConstraint(
                        condition=models.Q(("topic", b""), _negated=True), name="subscription_topic_not_empty"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Route",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "source",
                    models.CharField(
                        help_text="topic:NAME or queue:NAME",
                        max_length=262,
                        validators=[
                            django.core.validators.RegexValidator(
                                "(?s)\\A(queue|topic):.+\\Z", "An address is queue:NAME or topic:NAME."
                            )
                        ],
                    ),
                ),
                (
                    "target",
                    models.CharField(
                        help_text="topic:NAME, queue:NAME or peer:NAME",
                        max_length=262,
                        validators=[
                            django.core.validators.RegexValidator(
                                "(?s)\\A(queue|topic|peer):.+\\Z", "An address is queue:NAME, topic:NAME or peer:NAME."
                            )
                        ],
                    ),
                ),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
                ),
            ],
            options={
                "ordering": ("source", "target"),
                "constraints": [
                    models.UniqueConstraint(fields=("source", "target"), name="route_once"),
                    models.CheckConstraint(
                        condition=models.Q(("source", models.F("target")), _negated=True), name="route_not_to_itself"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("source__regex", "^(queue|topic):."), ("target__regex", "^(queue|topic|peer):.")
                        ),
                        name="route_addresses",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="RouteCount",
            fields=[
                (
                    "route",
                    models.OneToOneField(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        primary_key=True,
                        related_name="count",
                        serialize=False,
                        to="queues.route",
                    ),
                ),
                ("carried", models.BigIntegerField()),
            ],
            options={
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="RouteTally",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "route",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="queues.route",
                    ),
                ),
                ("carried", models.BigIntegerField()),
                ("at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={
                "verbose_name_plural": "route tallies",
                "default_permissions": (),
                "indexes": [models.Index(fields=["at"], name="routetally_at")],
            },
        ),
        migrations.CreateModel(
            name="DeadLetterCount",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
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
                ("carried", models.BigIntegerField()),
            ],
            options={
                "default_permissions": (),
                "constraints": [models.UniqueConstraint(fields=("queue", "target"), name="deadlettercount_once")],
            },
        ),
        migrations.CreateModel(
            name="DeadLetterTally",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
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
                ("carried", models.BigIntegerField()),
                ("at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={
                "verbose_name_plural": "dead letter tallies",
                "default_permissions": (),
                "indexes": [models.Index(fields=["at"], name="deadlettertally_at")],
            },
        ),
        migrations.CreateModel(
            name="Worker",
            fields=[
                ("wid", models.UUIDField(primary_key=True, serialize=False, verbose_name="worker")),
                (
                    "node",
                    models.ForeignKey(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="workers",
                        to="queues.node",
                    ),
                ),
                ("address", models.TextField()),
                ("connected_at", models.DateTimeField()),
                ("requests", models.BigIntegerField(db_default=0, help_text="Requests since it connected.")),
                ("subscriptions", models.JSONField(default=list)),
                ("jobs", models.JSONField(default=list)),
                ("active", models.IntegerField(db_default=0, help_text="Jobs it works on now.")),
                ("updated_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={
                "ordering": ("connected_at", "wid"),
            },
        ),
        *(
            migrations.RunSQL(
                (SQL / f"0001_{part}.sql").read_text(),
                (SQL / "0001_reverse.sql").read_text() if part == PARTS[0] else migrations.RunSQL.noop,
            )
            for part in PARTS
        ),
    ]
