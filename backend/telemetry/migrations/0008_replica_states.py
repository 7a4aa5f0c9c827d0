"""What replicas hold, beside what they did; and where all samples of a job went."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0007_words")]

    operations = [
        migrations.AddField("replicaactivity", "num_replicas", models.PositiveIntegerField(db_default=0, default=0)),
        migrations.AddField("replicaactivity", "num_states", models.PositiveIntegerField(db_default=0, default=0)),
        migrations.AddField("replicaactivity", "states", models.BinaryField(null=True)),
        migrations.CreateModel(
            name="SampleLedger",
            fields=[
                (
                    "job",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="+",
                        serialize=False,
                        to="jobs.job",
                    ),
                ),
                ("attempt", models.PositiveIntegerField()),
                ("step", models.PositiveBigIntegerField()),
                ("counts", models.JSONField()),
                ("is_final", models.BooleanField()),
                ("at", models.DateTimeField()),
            ],
        ),
    ]
