"""Trajectories say what became of them, how large their group is, and how many messages they have."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0005_unarchived_trajectories")]

    operations = [
        migrations.AddField(
            "trajectory", "end", models.CharField(db_default="trained", default="trained", max_length=20)
        ),
        migrations.AddField("trajectory", "reason", models.TextField(blank=True, db_default="", default="")),
        migrations.AddField("trajectory", "group_size", models.PositiveIntegerField(db_default=0, default=0)),
        migrations.AddField("trajectory", "num_turns", models.PositiveIntegerField(db_default=0, default=0)),
    ]
