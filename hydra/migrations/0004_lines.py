"""A node's row counts the lines of its process that came to no good end."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = (("hydra", "0003_tenures"),)

    operations = (
        migrations.AddField(
            model_name="node",
            name="lines_refused",
            field=models.BigIntegerField(
                db_default=0, default=0, help_text="Lines of its process that IRC refused."
            ),
        ),
        migrations.AddField(
            model_name="node",
            name="lines_lost",
            field=models.BigIntegerField(
                db_default=0,
                default=0,
                help_text="Lines that were said or not, nobody knows, or not stored; a gap is one.",
            ),
        ),
    )
