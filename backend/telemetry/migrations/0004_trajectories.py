"""What is removed after a job's end is called by the word that routes and pages use."""

from django.db import migrations, models

RENAME = "UPDATE telemetry_removal SET kind = '{}' WHERE kind = '{}'"


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0003_removals")]

    operations = [
        migrations.AlterField(
            "removal",
            "kind",
            models.CharField(choices=[("logs", "Logs"), ("trajectories", "Trajectories")], max_length=20),
        ),
        migrations.RunSQL(RENAME.format("trajectories", "rollouts"), RENAME.format("rollouts", "trajectories")),
    ]
