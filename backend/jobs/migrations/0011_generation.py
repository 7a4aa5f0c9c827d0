"""The generation of the installation: one row, of which a copy stands outside the database."""

from django.db import migrations, models

THE_ROW = """
INSERT INTO jobs_generation (id, site, number, pulse, cluster, reason)
VALUES (1, replace(gen_random_uuid()::text, '-', ''), 0, 0, '', '')
"""


class Migration(migrations.Migration):
    dependencies = [("jobs", "0010_progress")]
    expands = "it fills a table that old code does not know"

    operations = [
        migrations.CreateModel(
            name="Generation",
            fields=[
                ("id", models.PositiveSmallIntegerField(default=1, primary_key=True, serialize=False)),
                ("site", models.CharField(max_length=32)),
                ("number", models.PositiveIntegerField(default=0)),
                ("pulse", models.PositiveBigIntegerField(default=0)),
                ("cluster", models.CharField(blank=True, default="", max_length=100)),
                ("raised_at", models.DateTimeField(null=True)),
                ("reason", models.CharField(blank=True, default="", max_length=200)),
            ],
            options={
                "constraints": [models.CheckConstraint(condition=models.Q(("id", 1)), name="one_generation")],
            },
        ),
        migrations.RunSQL(THE_ROW, migrations.RunSQL.noop),
    ]
