"""Operators' pages for pools and quotas."""

from typing import ClassVar

from django.contrib import admin

from backend.pools.models import ResourcePool, TeamQuota


class QuotaInline(admin.TabularInline):  # type: ignore[type-arg]  # generic only in the stubs
    model = TeamQuota
    extra = 0


@admin.register(ResourcePool)
class ResourcePoolAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # generic only in the stubs
    list_display = ("name", "flavor", "capacity", "id")
    inlines: ClassVar = [QuotaInline]
