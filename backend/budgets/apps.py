from django.apps import AppConfig


class BudgetsConfig(AppConfig):
    name = "backend.budgets"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from backend.budgets.purses import purses_of_limits
        from backend.pools.purses import purses_of

        purses_of.fill(purses_of_limits)
