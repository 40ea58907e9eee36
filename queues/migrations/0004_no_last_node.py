"""No page shows the last node's id in the history."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("queues", "0003_flush")]

    operations = [migrations.RemoveField(model_name="queuesample", name="last_node")]
