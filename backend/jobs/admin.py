"""Read access to jobs in the admin site, for operators."""

from django.contrib import admin

from backend.jobs.models import Job


@admin.register(Job)
class JobAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # generic only in the stubs
    list_display = ("id", "name", "team", "pool", "state", "reason", "created_at")
    list_filter = ("state", "pool")
    search_fields = ("id", "name")
