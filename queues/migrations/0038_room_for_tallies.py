from django.db import migrations


class Migration(migrations.Migration):
    """What waits can be consumed while the disk is full: a claim adds a tally, whose table keeps its room."""

    dependencies = [
        ("queues", "0037_audit_spans"),
    ]

    operations = [
        migrations.RunSQL(
            "alter table queues_queuetally_kept set (vacuum_truncate = off)",
            "alter table queues_queuetally_kept reset (vacuum_truncate)",
        ),
    ]
