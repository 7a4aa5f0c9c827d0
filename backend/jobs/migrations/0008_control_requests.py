"""Rows of control requests get the engine's name for them, and a column instead of a document for their one number."""

from django.db import migrations, models
from django.db.models import Q

SIZES_INTO_COLUMN = "UPDATE jobs_controlrequest SET replicas = (data ->> 'replicas')::int WHERE kind = 'resize'"
SIZES_INTO_DOCUMENT = """
UPDATE jobs_controlrequest SET data = jsonb_build_object('replicas', replicas) WHERE kind = 'resize'
"""


class Migration(migrations.Migration):
    dependencies = [("jobs", "0007_evaluations")]

    operations = [
        migrations.RenameModel("JobRequest", "ControlRequest"),
        migrations.AddField("controlrequest", "replicas", models.PositiveIntegerField(null=True)),
        migrations.RunSQL(SIZES_INTO_COLUMN, SIZES_INTO_DOCUMENT),
        migrations.RemoveField("controlrequest", "data"),
        migrations.AddConstraint(
            "controlrequest",
            models.CheckConstraint(
                condition=Q(kind__in=["cancel", "pause"], replicas__isnull=True)
                | Q(kind="resize", replicas__isnull=False, replicas__gte=1),
                name="request_can_be_obeyed",
            ),
        ),
    ]
