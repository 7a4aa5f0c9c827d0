from django.apps import AppConfig


class TelemetryConfig(AppConfig):
    name = "backend.telemetry"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from backend.jobs.attempts.evidence import hear_last_words_with
        from backend.telemetry import auth_changes  # noqa: F401  # connects its receivers
        from backend.telemetry.last_words import last_words

        hear_last_words_with(last_words)
