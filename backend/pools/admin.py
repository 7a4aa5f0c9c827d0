"""Django admin for pools, quotas and budgets, for operators."""

from typing import ClassVar

from django.contrib import admin

from backend.pools.models import Budget, ResourcePool, TeamQuota


class QuotaInline(admin.TabularInline):  # type: ignore[type-arg]  # generic only in the stubs
    model = TeamQuota
    extra = 0


@admin.register(ResourcePool)
class ResourcePoolAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # generic only in the stubs
    list_display = ("name", "flavor", "capacity", "device_gb", "is_open", "id")
    readonly_fields = ("ray_url", "ray_token", "labels", "device", "autoscales")  # by clusters/settings.py
    inlines: ClassVar = [QuotaInline]


@admin.register(Budget)
class BudgetAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # generic only in the stubs
    list_display = ("team", "period", "gpu_seconds")
