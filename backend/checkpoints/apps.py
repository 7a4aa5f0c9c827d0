from django.apps import AppConfig


class CheckpointsConfig(AppConfig):
    name = "backend.checkpoints"
    default_auto_field = "django.db.models.BigAutoField"
