"""Django's admin with our site in place of its own."""

from django.contrib.admin.apps import AdminConfig


class ReadOnlyAdmin(AdminConfig):
    default_site = "backend.pages.operator.admin_site.ReadOnlySite"
