from django.apps import AppConfig


class AssetsConfig(AppConfig):
    name = "backend.assets"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from backend.assets.selectors import uploads_of_model
        from backend.assets.using.naming import AssetsOfTeams
        from backend.checkpoints.registry.uploads import uploads_of
        from backend.jobs.attempts.asset_catalog import asset_catalog

        asset_catalog.fill(AssetsOfTeams())
        uploads_of.fill(uploads_of_model)
