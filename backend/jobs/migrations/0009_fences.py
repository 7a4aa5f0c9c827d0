"""What fences an attempt, or a holder of the lease, is called fence: epoch is the trainer's incarnation and nothing else."""

from django.db import migrations


def _rename_in_guard(before: str, after: str) -> str:
    definition = "pg_get_functiondef('laminar_guard_job'::regproc)"
    return f"DO $$ BEGIN EXECUTE replace({definition}, '{before}', '{after}'); END $$;"


class Migration(migrations.Migration):
    dependencies = [("jobs", "0008_control_requests")]

    operations = [
        migrations.RenameField("job", "epoch", "fence"),
        migrations.RenameField("jobattempt", "epoch", "fence"),
        migrations.RenameField("reconcilelease", "epoch", "fence"),
        migrations.RunSQL(_rename_in_guard("epoch", "fence"), _rename_in_guard("fence", "epoch")),
    ]
