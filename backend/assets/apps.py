from django.apps import AppConfig


class AssetsConfig(AppConfig):
    name = "backend.assets"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from backend.assets.naming import AssetsOfTeams
        from backend.jobs.attempts.library import library

        library.fill(AssetsOfTeams())
