"""The wholes of trajectories that wait are called by what they wait for, the archive."""

from django.db import migrations, models
from django.db.models import deletion


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0004_trajectories")]

    operations = [
        migrations.RenameModel("UnfiledTrajectory", "UnarchivedTrajectory"),
        migrations.RenameIndex("unarchivedtrajectory", old_name="unfiled_of_job", new_name="unarchived_of_job"),
        migrations.RenameIndex("unarchivedtrajectory", old_name="unfiled_oldest", new_name="unarchived_oldest"),
        migrations.AlterField(
            "unarchivedtrajectory",
            "trajectory",
            models.OneToOneField(
                on_delete=deletion.CASCADE,
                primary_key=True,
                related_name="unarchived",
                serialize=False,
                to="telemetry.trajectory",
            ),
        ),
        migrations.AlterField(
            "unarchivedtrajectory",
            "job",
            models.ForeignKey(
                db_index=False, on_delete=deletion.CASCADE, related_name="unarchived_trajectories", to="jobs.job"
            ),
        ),
    ]
