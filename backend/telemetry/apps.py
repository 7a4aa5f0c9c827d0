from django.apps import AppConfig


class TelemetryConfig(AppConfig):
    name = "backend.telemetry"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from backend.telemetry import auth_changes  # noqa: F401  # connects its receivers
