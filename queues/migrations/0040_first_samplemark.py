from django.db import migrations

FIRST = """
insert into queues_samplemark (queue, at, ready, leased, delayed, dead, published, settled)
select 0, now(), 0, 0, 0, 0, 0, 0 where not exists (select from queues_queue)
on conflict (queue) do nothing
"""


class Migration(migrations.Migration):
    """The history of an installation without queues begins now: its first sample notes what has come since."""

    dependencies = [
        ("queues", "0039_unacked_by_queue"),
    ]

    operations = [
        migrations.RunSQL(FIRST, migrations.RunSQL.noop),
    ]
