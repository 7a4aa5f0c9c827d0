"""Django admin for the audit log, including the site's chain, for operators."""

from django.contrib import admin

from backend.audit.models import AuditEntry


@admin.register(AuditEntry)
class AuditEntryAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # generic only in the stubs
    list_display = ("team", "seq", "at", "actor", "action", "target", "ip", "data")
    list_filter = ("action",)
    search_fields = ("=team__id", "=actor", "=target")
    ordering = ("-at",)
