"""The words of trajectories, for the search. Of those that were told before there are none: they are not found."""

import django.db.models.deletion
from django.contrib.postgres.indexes import GinIndex
from django.contrib.postgres.search import SearchVectorField
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0006_ends")]

    operations = [
        migrations.CreateModel(
            name="TrajectoryWords",
            fields=[
                (
                    "trajectory",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="words",
                        serialize=False,
                        to="telemetry.trajectory",
                    ),
                ),
                ("words", models.TextField()),
                ("content", models.BinaryField()),
                (
                    "job",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="jobs.job",
                    ),
                ),
            ],
            options={
                "indexes": [
                    GinIndex(
                        models.Func(
                            models.Func("words", models.Value(" "), function="string_to_array"),
                            function="array_to_tsvector",
                            output_field=SearchVectorField(),
                        ),
                        name="trajectory_words",
                    )
                ]
            },
        ),
    ]
