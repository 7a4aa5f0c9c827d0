"""A team's name and settings, and its projects."""

from datetime import datetime

from django.db import IntegrityError, transaction
from django.db.models import ProtectedError

from backend.accounts.acting import Acting
from backend.accounts.models import Membership, Project, Role, Team, User
from backend.accounts.rights import has_second_factor
from backend.errors import Conflict, Denied, NotFound

FIRST_PROJECT = "First steps"


class NameTaken(Conflict):
    """This name is already in use in your team. Choose another name."""

    code = "name_taken"


class ProjectInUse(Conflict):
    """This project has jobs and cannot be deleted. Rename it instead."""

    code = "in_use"


@transaction.atomic
def change_team(acting: Acting, *, name: str | None = None, requires_mfa: bool | None = None, now: datetime) -> Team:
    acting.refuse_unless_ruling()
    team = Team.objects.select_for_update(no_key=True).get(pk=acting.team.pk)
    requested = {"name": name, "requires_mfa": requires_mfa}
    changes = {key: value for key, value in requested.items() if value is not None and value != getattr(team, key)}
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
    """Only an owner with a second factor may require one, so that an owner can undo the requirement."""
    if acting.role != Role.OWNER:
        raise Denied("Only an owner can require a second factor of owners and admins.")
    if not has_second_factor(acting.user):
        raise Denied("Set up your own second factor first, or you would lose your rights as an owner.")


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
    project = _lock_project(acting.team, project_id)
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
    """Deletes an empty project: jobs keep their project forever. Keys limited to the project are deleted too."""
    acting.refuse_unless_ruling()
    project = _lock_project(acting.team, project_id)
    if project.service_accounts.filter(closed_at=None).exists():
        raise ProjectInUse("A service account belongs to this project. Close it first.")
    try:
        project.delete()
    except ProtectedError:
        raise ProjectInUse from None
    acting.record("project.deleted", project_id, now=now, data={"name": project.name})


@transaction.atomic
def create_own_team(user: User, name: str) -> Team:
    """A new user's team, with a first project."""
    team = Team.objects.create(name=name)
    Membership.objects.create(team=team, user=user, role=Role.OWNER)
    Project.objects.create(team=team, name=FIRST_PROJECT)
    return team


def the_project(team: Team, project_id: str) -> Project:
    project = Project.objects.filter(team=team, pk=project_id).first()
    if project is None:
        raise NotFound
    return project


def _lock_project(team: Team, project_id: str) -> Project:
    project = Project.objects.select_for_update(no_key=True).filter(team=team, pk=project_id).first()
    if project is None:
        raise NotFound
    return project
