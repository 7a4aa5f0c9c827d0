"""Django admin for users, teams, projects and keys, for operators. Keys are listed without their secrets."""

from typing import ClassVar

from django.contrib import admin

from backend.accounts.models import ApiKey, Membership, Project, Team, User


class MembershipInline(admin.TabularInline):  # type: ignore[type-arg]  # generic only in the stubs
    model = Membership
    extra = 0


@admin.register(User)
class UserAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # generic only in the stubs
    list_display = ("email", "is_active", "is_staff", "last_login")
    search_fields = ("email",)
    fields = ("email", "is_active", "is_staff", "is_superuser", "last_login")


@admin.register(Team)
class TeamAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # generic only in the stubs
    list_display = ("name", "id", "created_at")
    search_fields = ("name", "id")
    inlines: ClassVar = [MembershipInline]


@admin.register(Project)
class ProjectAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # generic only in the stubs
    list_display = ("name", "team", "id")
    search_fields = ("name", "id")


@admin.register(ApiKey)
class ApiKeyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # generic only in the stubs
    list_display = ("prefix", "team", "owner", "scopes", "last_used_at", "expires_at", "revoked_at")
    fields = (*list_display, "name")
