from django.apps import AppConfig


class TelemetryConfig(AppConfig):
    name = "backend.telemetry"
    default_auto_field = "django.db.models.BigAutoField"
