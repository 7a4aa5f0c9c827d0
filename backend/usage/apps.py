from django.apps import AppConfig


class UsageConfig(AppConfig):
    name = "backend.usage"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from backend.jobs.submitting.costs import price_now
        from backend.usage.pricing.prices import price_and_currency

        price_now.fill(price_and_currency)
