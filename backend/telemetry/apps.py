from django.apps import AppConfig


class TelemetryConfig(AppConfig):
    name = "backend.telemetry"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from backend.checkpoints.metrics import values_at
        from backend.jobs.attempts.evidence import last_words
        from backend.jobs.generation.left_behind import left_facts
        from backend.telemetry.intake.left_facts import take_left_facts
        from backend.telemetry.live import auth_changes  # noqa: F401  # connects its receivers
        from backend.telemetry.logs.last_lines import read_last_lines
        from backend.telemetry.selectors import values_at_step

        last_words.fill(read_last_lines)
        left_facts.fill(take_left_facts)
        values_at.fill(values_at_step)
