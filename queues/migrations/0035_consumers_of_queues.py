from django.db import migrations


class Migration(migrations.Migration):
    """Connections tell which queues they take messages from, for the pages of these."""

    dependencies = [
        ("queues", "0034_connection_totals_at"),
    ]

    operations = [
        migrations.RunSQL(
            "alter table queues_connection add column queues integer[] not null default '{}'",
            "alter table queues_connection drop column queues",
        ),
    ]
