"""Operators' view of jobs. Read only: a job's state has one writer, and it is not this page."""

from django.contrib import admin
from django.http import HttpRequest

from backend.jobs.models import Job


@admin.register(Job)
class JobAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # generic only in the stubs
    list_display = ("id", "name", "team", "pool", "state", "reason", "created_at")
    list_filter = ("state", "pool")
    search_fields = ("id", "name")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Job | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Job | None = None) -> bool:
        return False
