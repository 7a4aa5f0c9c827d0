from django.apps import AppConfig

from backend.borders import converters


class ApiConfig(AppConfig):
    name = "backend.api"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        converters.register()
