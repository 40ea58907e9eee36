"""A node's row counts what its process has given up."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = (("hydra", "0001_initial"),)

    operations = (
        migrations.AddField(
            model_name="node",
            name="faults",
            field=models.BigIntegerField(
                db_default=0,
                default=0,
                help_text="Units of work given up by its process for unforeseen reasons.",
            ),
        ),
    )
