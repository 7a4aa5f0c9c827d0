"""A team's name and rules, and its projects."""

from datetime import datetime

from django.db import IntegrityError, transaction
from django.db.models import ProtectedError

from backend.accounts.acting import Acting
from backend.accounts.models import Membership, Project, Role, Team, User
from backend.accounts.rights import has_second_factor
from backend.errors import Conflict, Denied, NotFound

FIRST_PROJECT = "First steps"


class NameTaken(Conflict):
    """Something of your team has this name already."""

    code = "name_taken"


class ProjectInUse(Conflict):
    """Jobs belong to this project, and jobs are kept: rename it instead."""

    code = "in_use"


@transaction.atomic
def change_team(acting: Acting, *, name: str | None = None, requires_mfa: bool | None = None, now: datetime) -> Team:
    acting.refuse_unless_ruling()
    team = Team.objects.select_for_update(no_key=True).get(pk=acting.team.pk)
    wanted = {"name": name, "requires_mfa": requires_mfa}
    changes = {key: value for key, value in wanted.items() if value is not None and value != getattr(team, key)}
    if not changes:
        return team
    if "requires_mfa" in changes:
        _refuse_unless_safe(acting)
    before = {key: getattr(team, key) for key in changes}
    for key, value in changes.items():
        setattr(team, key, value)
    team.save(update_fields=list(changes))
    acting.record("team.changed", team.pk, now=now, data={"from": before, "to": changes})
    return team


def _refuse_unless_safe(acting: Acting) -> None:
    """Only an owner who has a second factor may ask one of those who rule, so that somebody can take the rule back."""
    if acting.role != Role.OWNER:
        raise Denied("Only an owner decides whether those who rule the team need a second factor.")
    if not has_second_factor(acting.user):
        raise Denied("Set up your own second factor first; otherwise nobody could take this rule back.")


@transaction.atomic
def create_project(acting: Acting, name: str, *, now: datetime) -> Project:
    acting.refuse_unless_ruling()
    try:
        with transaction.atomic():
            project = Project.objects.create(team=acting.team, name=name)
    except IntegrityError:
        raise NameTaken from None
    acting.record("project.created", project.pk, now=now, data={"name": name})
    return project


@transaction.atomic
def rename_project(acting: Acting, project_id: str, name: str, *, now: datetime) -> Project:
    acting.refuse_unless_ruling()
    project = _locked_project(acting.team, project_id)
    if project.name == name:
        return project
    before, project.name = project.name, name
    try:
        with transaction.atomic():
            project.save(update_fields=["name"])
    except IntegrityError:
        raise NameTaken from None
    acting.record("project.renamed", project.pk, now=now, data={"from": before, "to": name})
    return project


@transaction.atomic
def delete_project(acting: Acting, project_id: str, *, now: datetime) -> None:
    """Only an empty one: jobs keep their project forever. Keys that were limited to it go with it."""
    acting.refuse_unless_ruling()
    project = _locked_project(acting.team, project_id)
    if project.service_accounts.filter(closed_at=None).exists():
        raise ProjectInUse("A service account belongs to this project: close it first.")
    try:
        project.delete()
    except ProtectedError:
        raise ProjectInUse from None
    acting.record("project.deleted", project_id, now=now, data={"name": project.name})


@transaction.atomic
def found_team(user: User, name: str) -> Team:
    """A team of one's own, with a project to begin in."""
    team = Team.objects.create(name=name)
    Membership.objects.create(team=team, user=user, role=Role.OWNER)
    Project.objects.create(team=team, name=FIRST_PROJECT)
    return team


def the_project(team: Team, project_id: str) -> Project:
    project = Project.objects.filter(team=team, pk=project_id).first()
    if project is None:
        raise NotFound
    return project


def _locked_project(team: Team, project_id: str) -> Project:
    project = Project.objects.select_for_update(no_key=True).filter(team=team, pk=project_id).first()
    if project is None:
        raise NotFound
    return project
