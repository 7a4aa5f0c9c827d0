"""The audit log as operators read it, the chain of the site among them. Nothing is changed here, nor could it be."""

from django.contrib import admin
from django.http import HttpRequest

from backend.audit.models import AuditEntry


@admin.register(AuditEntry)
class AuditEntryAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # generic only in the stubs
    list_display = ("team", "seq", "at", "actor", "action", "target", "ip", "data")
    list_filter = ("action",)
    search_fields = ("=team__id", "=actor", "=target")
    ordering = ("-at",)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: AuditEntry | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: AuditEntry | None = None) -> bool:
        return False
