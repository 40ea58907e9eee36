from django.db import migrations


class Migration(migrations.Migration):
    """Connections tell how many messages of each queue they were given and have not settled."""

    dependencies = [
        ("queues", "0038_room_for_tallies"),
    ]

    operations = [
        migrations.RunSQL(
            "alter table queues_connection add column queues_unacked integer[] not null default '{}'",
            "alter table queues_connection drop column queues_unacked",
        ),
    ]
