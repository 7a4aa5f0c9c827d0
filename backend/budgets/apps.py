from django.apps import AppConfig


class BudgetsConfig(AppConfig):
    name = "backend.budgets"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from backend.budgets.spending_limits import spending_limits
        from backend.pools.spending_limits import spending_limits_of

        spending_limits_of.fill(spending_limits)
