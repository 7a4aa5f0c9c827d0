from django.apps import AppConfig


class AssetsConfig(AppConfig):
    name = "backend.assets"
    default_auto_field = "django.db.models.BigAutoField"
