from pathlib import Path

import django.core.validators
import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

SQL = Path(__file__).parent / "sql"


class Migration(migrations.Migration):
    dependencies = [
        ("queues", "0005_audit"),
    ]

    operations = [
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
                    "connection",
                    models.BigIntegerField(help_text="The number of its connection.", null=True),
                ),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("connected_at", models.DateTimeField(help_text="The last connect.", null=True)),
                ("left_at", models.DateTimeField(help_text="The last disconnect.", null=True)),
            ],
            options={
                "verbose_name": "peer",
                "ordering": ("name",),
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
            },
        ),
        migrations.RemoveConstraint(
            model_name="queue",
            name="queue_kind_known",
        ),
        migrations.RemoveConstraint(
            model_name="route",
            name="route_addresses",
        ),
        migrations.AlterField(
            model_name="archivedmessage",
            name="content",
            field=models.SmallIntegerField(
                choices=[(1, "application/msgpack"), (2, "application/json"), (3, "application/vnd.peerbus.v1+json")],
                help_text="Type of the payload; empty: bytes.",
                null=True,
            ),
        ),
        migrations.AlterField(
            model_name="message",
            name="content",
            field=models.SmallIntegerField(
                choices=[(1, "application/msgpack"), (2, "application/json"), (3, "application/vnd.peerbus.v1+json")],
                help_text="Type of the payload; empty: bytes.",
                null=True,
            ),
        ),
        migrations.AlterField(
            model_name="queue",
            name="kind",
            field=models.CharField(
                choices=[("queue", "queue"), ("subscription", "subscription"), ("mailbox", "mailbox")],
                db_default="queue",
                default="queue",
                editable=False,
                max_length=16,
            ),
        ),
        migrations.AlterField(
            model_name="route",
            name="target",
            field=models.CharField(
                help_text="topic:NAME, queue:NAME or peer:NAME",
                max_length=262,
                validators=[
                    django.core.validators.RegexValidator(
                        "(?s)\\A(queue|topic|peer):.+\\Z", "An address is queue:NAME, topic:NAME or peer:NAME."
                    )
                ],
            ),
        ),
        migrations.AddConstraint(
            model_name="queue",
            constraint=models.CheckConstraint(
                condition=models.Q(("kind__in", ["queue", "subscription", "mailbox"])), name="queue_kind_known"
            ),
        ),
        migrations.AddConstraint(
            model_name="route",
            constraint=models.CheckConstraint(
                condition=models.Q(("source__regex", "^(queue|topic):."), ("target__regex", "^(queue|topic|peer):.")),
                name="route_addresses",
            ),
        ),
        migrations.AddField(
            model_name="mailbox",
            name="node",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                help_text="The node of its connection; empty: not connected.",
                null=True,
                on_delete=django.db.models.deletion.DO_NOTHING,
                related_name="mailboxes",
                to="queues.node",
            ),
        ),
        migrations.AddField(
            model_name="mailbox",
            name="owner",
            field=models.ForeignKey(
                blank=True,
                help_text="The API key that owns the name; empty: the next one to connect.",
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="mailboxes",
                to="queues.apikey",
            ),
        ),
        migrations.AddConstraint(
            model_name="seenletter",
            constraint=models.CheckConstraint(
                condition=models.Q(("id", b""), _negated=True), name="letterseen_id_not_empty"
            ),
        ),
        migrations.AddIndex(
            model_name="mailbox",
            index=models.Index(condition=models.Q(("node__isnull", False)), fields=["node"], name="mailbox_connected"),
        ),
        migrations.AddIndex(
            model_name="mailbox",
            index=models.Index(condition=models.Q(("owner__isnull", False)), fields=["owner"], name="mailbox_owner"),
        ),
        migrations.AddConstraint(
            model_name="mailbox",
            constraint=models.CheckConstraint(
                condition=models.Q(("name", ""), _negated=True), name="mailbox_name_not_empty"
            ),
        ),
        migrations.AddConstraint(
            model_name="mailbox",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("connection__isnull", True), ("node__isnull", True)),
                    models.Q(("connection__isnull", False), ("node__isnull", False)),
                    _connector="OR",
                ),
                name="mailbox_connection_has_node",
            ),
        ),
        migrations.RunSQL((SQL / "0006_mailboxes.sql").read_text(), (SQL / "0006_mailboxes_reverse.sql").read_text()),
    ]
