"""REST: the calling key, its team, and the team's projects."""

from datetime import datetime
from typing import Annotated

from django.http import HttpRequest
from ninja import Router, Status
from pydantic import BaseModel, Field

from backend.accounts.acting import Acting
from backend.accounts.keys.bearer import ANY_KEY, MAY_READ, ApiKeyAuth, caller_of
from backend.accounts.models import Role
from backend.accounts.people.teams import change_team, create_project, delete_project, rename_project, the_project
from backend.accounts.representations import Named, ProjectOut, TeamOut, represent_project, represent_team
from backend.accounts.selectors import projects_of
from backend.api.pagination import Page
from backend.api.problems import problems
from backend.borders.types import OneLine, PathId
from backend.clock import database_now
from engine.spec.strict import Strict

router = Router(tags=["Account"])
MAY_LOOK = ApiKeyAuth("team:read")
MAY_RULE = ApiKeyAuth("team:write")
BODY = (400, 413, 415, 422)  # further statuses of a route that takes a body
Name = Annotated[OneLine, Field(min_length=1, max_length=80, pattern=r"\S")]


class KeyOut(BaseModel):
    id: str
    name: str
    prefix: str
    expires_at: datetime | None


class MeOut(BaseModel):
    key: KeyOut
    team: Named
    user: str
    user_id: str
    role: Role
    scopes: list[str]


class TeamChange(Strict):
    name: Name | None = None
    requires_mfa: bool | None = Field(None, description="Can be changed only by an owner with a second factor.")


class ProjectWish(Strict):
    name: Name


@router.get("/me", auth=ANY_KEY, response={200: MeOut} | problems(), summary="The calling key and its scopes")
def me(request: HttpRequest) -> MeOut:
    caller = caller_of(request)
    key = caller.key
    return MeOut(
        key=KeyOut(id=key.pk, name=key.name, prefix=key.prefix, expires_at=key.expires_at),
        team=Named(id=caller.team.pk, name=caller.team.name),
        user=caller.user.email,
        user_id=caller.user.public_id,
        role=caller.role,
        scopes=sorted(caller.scopes),
    )


@router.get("/teams", auth=MAY_LOOK, response={200: Page[TeamOut]} | problems(), summary="The key's team")
def teams(request: HttpRequest) -> Page[TeamOut]:
    """A key belongs to one team, so the list has one entry."""
    caller = caller_of(request)
    return Page(data=[represent_team(caller.team, caller.role)])


@router.patch("/team", auth=MAY_RULE, response={200: TeamOut} | problems(*BODY), summary="Update the team")
def patch_team(request: HttpRequest, body: TeamChange) -> TeamOut:
    caller = caller_of(request)
    changed = change_team(Acting.of(caller), name=body.name, requires_mfa=body.requires_mfa, now=database_now())
    return represent_team(changed, caller.role)


@router.get("/projects", auth=MAY_READ, response={200: Page[ProjectOut]} | problems(), summary="List projects")
def projects(request: HttpRequest) -> Page[ProjectOut]:
    return Page(data=[represent_project(row) for row in projects_of(caller_of(request).team)])


@router.post("/projects", auth=MAY_RULE, response={201: ProjectOut} | problems(409, *BODY), summary="Create a project")
def post_project(request: HttpRequest, body: ProjectWish) -> Status[ProjectOut]:
    project = create_project(Acting.of(caller_of(request)), body.name, now=database_now())
    return Status(201, represent_project(project))


@router.get("/projects/{project_id}", auth=MAY_READ, response={200: ProjectOut} | problems(404), summary="Get project")
def show_project(request: HttpRequest, project_id: PathId) -> ProjectOut:
    return represent_project(the_project(caller_of(request).team, project_id))


@router.patch(
    "/projects/{project_id}",
    auth=MAY_RULE,
    response={200: ProjectOut} | problems(404, 409, *BODY),
    summary="Rename a project",
)
def patch_project(request: HttpRequest, project_id: PathId, body: ProjectWish) -> ProjectOut:
    project = rename_project(Acting.of(caller_of(request)), project_id, body.name, now=database_now())
    return represent_project(project)


@router.delete(
    "/projects/{project_id}",
    auth=MAY_RULE,
    response={204: None} | problems(404, 409),
    summary="Delete an empty project",
)
def remove_project(request: HttpRequest, project_id: PathId) -> Status[None]:
    """409 `in_use` if the project has jobs: jobs are kept, and so is their project."""
    delete_project(Acting.of(caller_of(request)), project_id, now=database_now())
    return Status(204, None)
