from django.apps import AppConfig


class CheckpointsConfig(AppConfig):
    name = "backend.checkpoints"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from backend.checkpoints.resuming import CheckpointsOfJobs
        from backend.jobs.attempts.resume_points import checkpoints

        checkpoints.fill(CheckpointsOfJobs())
