"""Operators' pages for people, teams and projects. Keys are shown, never their secrets, and only revoked here.

allauth's own pages for addresses are taken away: they would prove one without a word to anybody. Passwords change where
everybody's do, where guesses at the present one are counted.

Invariant: a member who comes, goes or changes here stands in the team's audit log, and who goes loses their keys for
good, as by `memberships`.
"""

from typing import Any, ClassVar

from allauth.account.models import EmailAddress
from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect

from backend.accounts.addresses.proved import vouch_for
from backend.accounts.models import ApiKey, Membership, Project, Team, User
from backend.accounts.services import revoke_keys
from backend.audit.services import record_action
from backend.clock import database_now

admin.site.unregister(EmailAddress)


def _where_everybody_does(request: HttpRequest, extra_context: object = None) -> HttpResponse:
    return redirect("account_change_password")


admin.site.password_change = _where_everybody_does  # type: ignore[assignment, method-assign]


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

    def save_formset(self, request: HttpRequest, form: Any, formset: Any, change: bool) -> None:
        """All of a team's rows at once; Django has opened the transaction."""
        team, now = form.instance, database_now()
        before = dict(Membership.objects.filter(team=team).values_list("user", "role"))
        super().save_formset(request, form, formset, change)
        after = dict(Membership.objects.filter(team=team).values_list("user", "role"))
        for user in User.objects.filter(pk__in=before.keys() | after.keys()).order_by("pk"):
            was, is_now = before.get(user.pk), after.get(user.pk)
            if was == is_now:
                continue
            data: dict[str, object] = {"from": was, "to": is_now}
            if is_now is None:
                data["keys_revoked"] = revoke_keys(
                    ApiKey.objects.filter(team=team, owner=user, revoked_at=None), now=now
                )
            record_action(
                team_id=team.pk, actor=f"user:{request.user.pk}", action=_told(was, is_now), target=user.public_id,
                now=now, data=data,
            )  # fmt: skip


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


def _told(was: str | None, is_now: str | None) -> str:
    return "member.removed" if is_now is None else "member.added" if was is None else "member.role_changed"
