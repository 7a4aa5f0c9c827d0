"""Memberships, keys and rights, as a user may see them.

Invariant: another team's rows are treated as if that team did not exist.
"""

from datetime import datetime

from django.db.models import OuterRef, QuerySet, Subquery

from backend.accounts.models import ApiKey, Invitation, Membership, Project, Role, ServiceAccount, Team, User

MAY_SUBMIT = frozenset({Role.OWNER, Role.ADMIN, Role.MEMBER})
"""Viewers read; everyone else also submits and cancels."""


def teams_of(user: User) -> QuerySet[Team]:
    return Team.objects.filter(memberships__user=user).order_by("name", "id")


def role_in(user: User, team: Team) -> Role | None:
    role = Membership.objects.filter(user=user, team=team).values_list("role", flat=True).first()
    return Role(role) if role else None


def may_submit(user: User, team: Team) -> bool:
    return role_in(user, team) in MAY_SUBMIT


def projects_of(team: Team) -> QuerySet[Project]:
    return Project.objects.filter(team=team).order_by("name", "id")


def members_of(team: Team) -> QuerySet[Membership]:
    """Users only; service accounts are listed separately."""
    return (
        Membership.objects.select_related("user")
        .filter(team=team, user__is_service=False)
        .order_by("user__email", "user_id")
    )


def open_invitations_of(team: Team, *, now: datetime) -> QuerySet[Invitation]:
    return (
        Invitation.objects.select_related("invited_by")
        .filter(team=team, accepted_at=None, revoked_at=None, expires_at__gt=now)
        .order_by("-created_at", "-id")
    )


def service_accounts_of(team: Team) -> QuerySet[ServiceAccount]:
    role = Membership.objects.filter(user=OuterRef("user"), team=OuterRef("team")).values("role")
    return (
        ServiceAccount.objects.select_related("project")
        .annotate(role=Subquery(role))
        .filter(team=team, closed_at=None)
        .order_by("-created_at", "-id")
    )


def keys_visible_to(user: User, team: Team, *, rules: bool) -> QuerySet[ApiKey]:
    """All keys of the team for owners and admins, else the user's own. Secrets are not stored."""
    keys = ApiKey.objects.select_related("owner__service_account", "created_by", "project").filter(team=team)
    return (keys if rules else keys.filter(owner=user)).order_by("-created_at", "-id")
