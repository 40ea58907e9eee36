from pathlib import Path

from django.db import migrations, models

SQL = Path(__file__).parent / "sql"


class Migration(migrations.Migration):
    dependencies = [
        ("queues", "0006_mailboxes"),
    ]

    operations = [
        migrations.AlterField(
            model_name="queue",
            name="audited",
            field=models.BooleanField(
                db_default=False,
                default=False,
                help_text="Record the events of each message in the queue's own audit chain.",
            ),
        ),
        migrations.AddConstraint(
            model_name="queue",
            constraint=models.CheckConstraint(
                condition=models.Q(("audited", False), models.Q(("kind", "mailbox"), _negated=True), _connector="OR"),
                name="queue_mailbox_not_audited",
                violation_error_message="Letters between peers are recorded in the chain peerbus.",
            ),
        ),
        migrations.RunSQL(
            (SQL / "0007_audited_queues.sql").read_text(), (SQL / "0007_audited_queues_reverse.sql").read_text()
        ),
    ]
