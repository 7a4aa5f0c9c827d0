"""Operators' pages for pools, quotas and budgets."""

from typing import ClassVar

from django.contrib import admin
from django.core.exceptions import ValidationError
from django.forms import BaseInlineFormSet

from backend.pools.models import Budget, ResourcePool, TeamQuota


class QuotaFormSet(BaseInlineFormSet):  # type: ignore[type-arg]  # generic only in the stubs
    def clean(self) -> None:
        """Faults that the database would refuse at commit, said in time."""
        super().clean()
        kept = [form.cleaned_data for form in self.forms if hasattr(form, "cleaned_data")]
        promised = sum(data.get("nominal") or 0 for data in kept if not data.get("DELETE"))
        capacity = self.instance.capacity or 0
        if promised > capacity:
            raise ValidationError(f"The nominal quotas add up to {promised}; the pool has {capacity} devices.")


class QuotaInline(admin.TabularInline):  # type: ignore[type-arg]  # generic only in the stubs
    model = TeamQuota
    formset = QuotaFormSet
    extra = 0


@admin.register(ResourcePool)
class ResourcePoolAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # generic only in the stubs
    list_display = ("name", "flavor", "capacity", "device_gb", "is_open", "id")
    inlines: ClassVar = [QuotaInline]


@admin.register(Budget)
class BudgetAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # generic only in the stubs
    list_display = ("team", "period", "gpu_seconds")
