from django.apps import AppConfig


class OperatingConfig(AppConfig):
    name = "backend.operating"
    default_auto_field = "django.db.models.BigAutoField"
