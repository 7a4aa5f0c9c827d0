from django.apps import AppConfig


class JobsConfig(AppConfig):
    name = "backend.jobs"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from backend.accounts.keys.project_limits import project_of_job
        from backend.jobs.queue.scheduling import call_a_round
        from backend.jobs.selectors import project_id_of
        from backend.pools.changes import pool_changed

        project_of_job.fill(project_id_of)
        pool_changed.fill(call_a_round)
