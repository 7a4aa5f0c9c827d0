from django.apps import AppConfig


class QuotaRequestsConfig(AppConfig):
    name = "backend.quota_requests"
    default_auto_field = "django.db.models.BigAutoField"
