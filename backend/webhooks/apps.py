from django.apps import AppConfig


class WebhooksConfig(AppConfig):
    name = "backend.webhooks"
    default_auto_field = "django.db.models.BigAutoField"
