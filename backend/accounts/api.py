"""GET /me and /projects: what a key is, and where it may submit."""

from datetime import datetime

from django.http import HttpRequest
from ninja import Router
from pydantic import BaseModel

from backend.accounts.bearer import ANY_KEY, MAY_READ, caller_of
from backend.accounts.models import Role
from backend.accounts.selectors import projects_of
from backend.api.pagination import Page
from backend.api.problems import problems

router = Router(tags=["Account"])


class Named(BaseModel):
    id: str
    name: str


class KeyOut(BaseModel):
    id: str
    name: str
    prefix: str
    expires_at: datetime | None


class MeOut(BaseModel):
    key: KeyOut
    team: Named
    user: str
    role: Role
    scopes: list[str]


class ProjectOut(BaseModel):
    id: str
    name: str
    created_at: datetime


@router.get("/me", auth=ANY_KEY, response={200: MeOut} | problems(), summary="What this key is and may do")
def me(request: HttpRequest) -> MeOut:
    caller = caller_of(request)
    key = caller.key
    return MeOut(
        key=KeyOut(id=key.pk, name=key.name, prefix=key.prefix, expires_at=key.expires_at),
        team=Named(id=caller.team.pk, name=caller.team.name),
        user=caller.user.email,
        role=caller.role,
        scopes=sorted(caller.scopes),
    )


@router.get("/projects", auth=MAY_READ, response={200: Page[ProjectOut]} | problems(), summary="The team's projects")
def projects(request: HttpRequest) -> Page[ProjectOut]:
    found = projects_of(caller_of(request).team)
    return Page(data=[ProjectOut(id=row.pk, name=row.name, created_at=row.created_at) for row in found])
