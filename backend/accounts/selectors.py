"""Who belongs where and may do what.

Invariant: a question about another team is answered as if that team did not exist.
"""

from django.db.models import QuerySet

from backend.accounts.models import Membership, Project, Role, Team, User

MAY_SUBMIT = frozenset({Role.OWNER, Role.ADMIN, Role.MEMBER})
"""Viewers read; everyone else also submits and cancels."""


def teams_of(user: User) -> QuerySet[Team]:
    return Team.objects.filter(memberships__user=user).order_by("name", "id")


def role_in(user: User, team: Team) -> Role | None:
    found = Membership.objects.filter(user=user, team=team).values_list("role", flat=True).first()
    return Role(found) if found else None


def may_submit(user: User, team: Team) -> bool:
    return role_in(user, team) in MAY_SUBMIT


def projects_of(team: Team) -> QuerySet[Project]:
    return Project.objects.filter(team=team).order_by("name", "id")
