"""Teams that an operator creates for others.

Invariant: such a team has no member until the invited owner joins; the operator is not a member.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction
from django.db.models import Count, Q

from backend.accounts.acting import Acting
from backend.accounts.models import Invitation, Project, Role, Team
from backend.accounts.operators.acting import Operator
from backend.accounts.people.invitations import EMAIL, invite
from backend.accounts.people.teams import FIRST_PROJECT, NameTaken
from backend.accounts.signing_in.chains import SITE
from backend.errors import FieldError, Invalid, NotFound

LONGEST_NAME = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamSummary:
    team: Team
    num_people: int
    num_owners: int


@transaction.atomic
def make_team(operator: Operator, *, name: str, owner: str, now: datetime) -> tuple[Invitation, str]:
    """Creates a team with a first project, and an invitation for its owner; returns the invitation and its token.
    Raises `Invalid`, `NameTaken`."""
    errors = []
    if not name or len(name) > LONGEST_NAME or not name.isprintable():
        errors.append(FieldError(pointer="/name", code="name", message=f"Use 1 to {LONGEST_NAME} characters."))
    if not EMAIL.fullmatch(owner) or not owner.isprintable() or len(owner) > 254:
        message = "Use an email address such as ada@example.org."
        errors.append(FieldError(pointer="/owner", code="email", message=message))
    if errors:
        raise Invalid(errors=errors)
    if Team.objects.filter(name__iexact=name).exists():
        raise NameTaken(f"A team named {name} already exists. Choose another name.")
    team = Team.objects.create(name=name)
    Project.objects.create(team=team, name=FIRST_PROJECT)
    operator.record("team.created", team.pk, now=now, data={"name": name, "owner": owner}, team_id=team.pk)
    return _invite(operator, team, owner, now)


@transaction.atomic
def invite_owner(operator: Operator, team_id: str, *, owner: str, now: datetime) -> tuple[Invitation, str]:
    """Invites an owner, for a team whose owner never joined or is gone."""
    if not EMAIL.fullmatch(owner) or not owner.isprintable() or len(owner) > 254:
        raise Invalid("Use an email address such as ada@example.org.")
    return _invite(operator, the_team(team_id), owner, now)


def the_team(team_id: str) -> Team:
    """Any team except the site's own, which only keeps a log. Raises `NotFound`."""
    team = Team.objects.filter(pk=team_id).exclude(pk=SITE).first()
    if team is None:
        raise NotFound("Team not found.")
    return team


def all_teams() -> Sequence[TeamSummary]:
    people = Count("memberships", filter=Q(memberships__user__is_service=False))
    owners = Count("memberships", filter=Q(memberships__role=Role.OWNER))
    rows = Team.objects.exclude(pk=SITE).annotate(num_people=people, num_owners=owners).order_by("name", "pk")
    return [TeamSummary(team=row, num_people=row.num_people, num_owners=row.num_owners) for row in rows]


def _invite(operator: Operator, team: Team, owner: str, now: datetime) -> tuple[Invitation, str]:
    """Invites with an owner's rights: an operator may grant any role."""
    acting = Acting(user=operator.user, team=team, role=Role.OWNER)
    return invite(acting, email=owner, role=Role.OWNER, now=now)
