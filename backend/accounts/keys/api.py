"""REST: API keys and service accounts."""

from decimal import Decimal
from typing import Annotated

from django.http import HttpRequest, HttpResponse
from ninja import Router, Status
from pydantic import Field

from backend.accounts.acting import Acting
from backend.accounts.api import BODY, MAY_LOOK, MAY_RULE, Name
from backend.accounts.keys.bearer import ANY_KEY, caller_of
from backend.accounts.keys.making import KeyWish, make_key, revoke_key
from backend.accounts.keys.service_accounts import (
    change_service_account,
    close_service_account,
    open_service_account,
)
from backend.accounts.models import Project, Role, Team
from backend.accounts.representations import (
    ApiKeyMade,
    ApiKeyOut,
    ServiceAccountOut,
    represent_key,
    represent_service_account,
)
from backend.accounts.selectors import keys_visible_to, projects_of, service_accounts_of
from backend.api.pagination import DEFAULT_LIMIT, Cursor, Limit, Page, page_after
from backend.api.problems import problems
from backend.borders.types import Id, PathId, ZonedMoment
from backend.clock import database_now
from backend.errors import FieldError, Invalid
from engine.spec.strict import Strict, Text

router = Router(tags=["Keys"])


class ServiceAccountWish(Strict):
    name: Name
    role: Role = Field(Role.MEMBER, description="`member` or `viewer`.")
    project: Id | None = Field(None, description="Limits the account's keys to this project.")


class ServiceAccountChange(Strict):
    role: Role


class ApiKeyWish(Strict):
    name: Name
    scopes: Annotated[list[Annotated[Text, Field(max_length=40)]], Field(max_length=40)] | None = Field(
        None, description="Default: the default scopes of the owner's role, as far as you have them."
    )
    expires_at: ZonedMoment | None = None
    service_account: Id | None = Field(None, description="Id of the service account that owns the key. Default: you.")
    project: Id | None = Field(None, description="Limits the key to jobs of this project.")
    max_devices: int | None = Field(None, ge=1, le=1_000_000, description="Devices its jobs may hold or wait for.")
    max_gpu_hours: Decimal | None = Field(
        None, gt=0, le=1_000_000_000, max_digits=12, decimal_places=2, description="GPU-hours its jobs may ever use."
    )


@router.get(
    "/service-accounts",
    auth=MAY_LOOK,
    response={200: Page[ServiceAccountOut]} | problems(422),
    summary="List service accounts",
)
def service_accounts(
    request: HttpRequest, cursor: Cursor = None, limit: Limit = DEFAULT_LIMIT
) -> Page[ServiceAccountOut]:
    rows, next_cursor = page_after(service_accounts_of(caller_of(request).team), cursor=cursor, limit=limit)
    shown = [represent_service_account(row, Role(row.role)) for row in rows]  # type: ignore[attr-defined]
    return Page(data=shown, has_more=next_cursor is not None, next_cursor=next_cursor)


@router.post(
    "/service-accounts",
    auth=MAY_RULE,
    response={201: ServiceAccountOut} | problems(409, *BODY),
    summary="Create a service account",
)
def post_service_account(request: HttpRequest, body: ServiceAccountWish) -> Status[ServiceAccountOut]:
    """An identity for a program: it cannot sign in, and its keys stay valid when its creator leaves."""
    caller = caller_of(request)
    account = open_service_account(
        Acting.of(caller),
        name=body.name,
        role=body.role,
        project=_project(caller.team, body.project),
        now=database_now(),
    )
    return Status(201, represent_service_account(account, body.role))


@router.patch(
    "/service-accounts/{account_id}",
    auth=MAY_RULE,
    response={200: ServiceAccountOut} | problems(404, *BODY),
    summary="Change a service account's role",
)
def patch_service_account(request: HttpRequest, account_id: PathId, body: ServiceAccountChange) -> ServiceAccountOut:
    account = change_service_account(Acting.of(caller_of(request)), account_id, role=body.role, now=database_now())
    return represent_service_account(account, body.role)


@router.delete(
    "/service-accounts/{account_id}",
    auth=MAY_RULE,
    response={204: None} | problems(404),
    summary="Close a service account",
)
def delete_service_account(request: HttpRequest, account_id: PathId) -> Status[None]:
    """Revokes the account's keys at once. Its jobs continue."""
    close_service_account(Acting.of(caller_of(request)), account_id, now=database_now())
    return Status(204, None)


@router.get("/api-keys", auth=MAY_LOOK, response={200: Page[ApiKeyOut]} | problems(422), summary="List API keys")
def api_keys(request: HttpRequest, cursor: Cursor = None, limit: Limit = DEFAULT_LIMIT) -> Page[ApiKeyOut]:
    """All keys of the team with `team:write`, else your own. Secrets are never included."""
    acting, now = Acting.of(caller_of(request)), database_now()
    rows, next_cursor = page_after(
        keys_visible_to(acting.user, acting.team, rules=acting.rules), cursor=cursor, limit=limit
    )
    return Page(
        data=[represent_key(row, now=now) for row in rows], has_more=next_cursor is not None, next_cursor=next_cursor
    )


@router.post("/api-keys", auth=MAY_RULE, response={201: ApiKeyMade} | problems(404, 409, *BODY), summary="Create a key")
def post_api_key(request: HttpRequest, response: HttpResponse, body: ApiKeyWish) -> Status[ApiKeyMade]:
    """The key gets no scope that the calling key lacks, and is revoked with it. Only this response has the secret."""
    caller, now = caller_of(request), database_now()
    wish = KeyWish(
        name=body.name,
        scopes=body.scopes,
        expires_at=body.expires_at,
        project=_project(caller.team, body.project),
        max_devices=body.max_devices,
        max_gpu_hours=body.max_gpu_hours,
    )
    key, text = make_key(Acting.of(caller), wish, account_id=body.service_account, now=now)
    response["Cache-Control"] = "no-store"
    return Status(201, ApiKeyMade(**represent_key(key, now=now).model_dump(), secret=text))


@router.delete("/api-keys/{key_id}", auth=ANY_KEY, response={204: None} | problems(404), summary="Revoke an API key")
def delete_api_key(request: HttpRequest, key_id: PathId) -> Status[None]:
    """Revokes the key at once, with every key created with it. A key can revoke itself; others need `team:write`."""
    revoke_key(Acting.of(caller_of(request)), key_id, now=database_now())
    return Status(204, None)


def _project(team: Team, project_id: str | None) -> Project | None:
    if project_id is None:
        return None
    project = projects_of(team).filter(pk=project_id).first()
    if project is None:
        place = FieldError(pointer="/project", code="unknown", message="must be the id of a project of your team")
        raise Invalid("Project not found.", errors=[place])
    return project
