"""Operators' pages for people, teams and projects. Keys are shown, never their secrets, and only revoked here.

allauth's own pages for addresses are taken away: they would prove one without a word to anybody.
"""

from typing import Any, ClassVar

from allauth.account.models import EmailAddress
from django.contrib import admin
from django.http import HttpRequest

from backend.accounts.addresses.proved import vouch_for
from backend.accounts.models import ApiKey, Membership, Project, Team, User

admin.site.unregister(EmailAddress)


class MembershipInline(admin.TabularInline):  # type: ignore[type-arg]  # generic only in the stubs
    model = Membership
    extra = 0
    autocomplete_fields = ("user",)


@admin.register(User)
class UserAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # generic only in the stubs
    list_display = ("email", "is_active", "is_staff", "last_login")
    search_fields = ("email",)
    fields = ("email", "is_active", "is_staff", "is_superuser", "last_login")
    readonly_fields = ("last_login",)

    def get_readonly_fields(self, request: HttpRequest, obj: User | None = None) -> tuple[str, ...]:
        """An address moves by a link that proves it: `manage.py account move`."""
        return ("email", *self.readonly_fields) if obj else self.readonly_fields

    def save_model(self, request: HttpRequest, obj: User, form: Any, change: bool) -> None:
        if not change:
            obj.email = obj.email.lower()
            obj.set_unusable_password()
        super().save_model(request, obj, form, change)
        if not change:
            vouch_for(obj)


@admin.register(Team)
class TeamAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # generic only in the stubs
    list_display = ("name", "id", "created_at")
    search_fields = ("name", "id")
    inlines: ClassVar = [MembershipInline]


@admin.register(Project)
class ProjectAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # generic only in the stubs
    list_display = ("name", "team", "id")
    search_fields = ("name", "id")

    def get_readonly_fields(self, request: HttpRequest, obj: Project | None = None) -> tuple[str, ...]:
        return ("team",) if obj else ()  # a project belongs to one team forever


@admin.register(ApiKey)
class ApiKeyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # generic only in the stubs
    list_display = ("prefix", "team", "owner", "scopes", "last_used_at", "expires_at", "revoked_at")
    fields = (*list_display, "name")
    readonly_fields = ("prefix", "team", "owner", "scopes", "last_used_at", "name")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False
