"""REST: data sets and uploaded models. Parse, call a service, represent."""

from typing import Annotated

from django.http import HttpRequest, HttpResponse
from ninja import Path, Query, Router, Status

from backend.accounts.keys.bearer import ApiKeyAuth, caller_of
from backend.accounts.models import Project
from backend.accounts.selectors import projects_of
from backend.accounts.services import Caller
from backend.api.pagination import DEFAULT_LIMIT, Cursor, Limit, Page, page_after
from backend.api.problems import problems
from backend.assets.models import AssetState
from backend.assets.removing import delete_asset
from backend.assets.representations import (
    AssetFileOut,
    AssetName,
    AssetOut,
    BeginUpload,
    ChangeStorage,
    CompleteUpload,
    Kind,
    StorageOut,
)
from backend.assets.selectors import assets_seen_by, the_asset, the_file, the_own_asset
from backend.assets.storage import set_storage, storage_of
from backend.assets.uploads.receiving import received
from backend.assets.uploads.upload import NotUploading, begin_upload, complete_upload, put_part
from backend.borders.types import PathId
from backend.clock import database_now
from backend.errors import Denied, FieldError, NotFound
from backend.pools.selectors import the_team
from engine.spec.assets.asset_manifest import Sha256, num_parts, part_bytes

router = Router(tags=["Data sets and models"])

MAY_READ = ApiKeyAuth("data:read")
MAY_WRITE = ApiKeyAuth("data:write")
MAY_OPERATE = ApiKeyAuth("quota:write")
Number = Annotated[int, Path(ge=0, le=2**31 - 1)]
PART_BODY = {"requestBody": {"required": True, "content": {"application/octet-stream": {"schema": {"type": "string"}}}}}


@router.post(
    "/assets",
    auth=MAY_WRITE,
    response={201: AssetOut, 200: AssetOut} | problems(400, 404, 409, 413, 415, 422),
    summary="Start an upload",
)
def begin(request: HttpRequest, body: BeginUpload) -> Status[AssetOut]:
    """Lists all files at once and reserves their bytes in the team's storage, or fails with 409 `over_storage_quota`.
    The same listing under the same name resumes its upload (200). Then PUT every part, and complete the upload."""
    caller = caller_of(request)
    project = _project(caller, body.project)
    asset, is_new = begin_upload(
        team=caller.team,
        project=project,
        kind=body.kind,
        name=body.name,
        files=body.files,
        actor=caller.actor,
        now=database_now(),
    )
    return Status(201 if is_new else 200, AssetOut.of(asset))


@router.get(
    "/assets", auth=MAY_READ, response={200: Page[AssetOut]} | problems(422), summary="List data sets and models"
)
def list_assets(
    request: HttpRequest,
    kind: Kind | None = None,
    name: AssetName | None = None,
    cursor: Cursor = None,
    limit: Limit = DEFAULT_LIMIT,
) -> Page[AssetOut]:
    """Newest first: unfinished uploads, ready assets, and assets that an operator registered for all teams."""
    rows = assets_seen_by(caller_of(request))
    if kind is not None:
        rows = rows.filter(kind=kind)
    if name is not None:
        rows = rows.filter(name=name)
    shown, next_cursor = page_after(rows, cursor=cursor, limit=limit)
    return Page(data=[AssetOut.of(row) for row in shown], has_more=next_cursor is not None, next_cursor=next_cursor)


@router.get("/assets/{asset_id}", auth=MAY_READ, response={200: AssetOut} | problems(404), summary="Get an asset")
def show(request: HttpRequest, asset_id: PathId) -> AssetOut:
    return AssetOut.of(the_asset(caller_of(request), asset_id))


@router.get(
    "/assets/{asset_id}/files",
    auth=MAY_READ,
    response={200: Page[AssetFileOut]} | problems(404, 422),
    summary="List an asset's files",
)
def files(
    request: HttpRequest,
    asset_id: PathId,
    cursor: Annotated[int, Query(ge=0, le=2**31 - 1, description="`next_cursor` of the previous page.")] = 0,
    limit: Limit = DEFAULT_LIMIT,
) -> Page[AssetFileOut]:
    """Sorted by name. To resume an interrupted upload, send the parts that are null or have another sha256."""
    rows = the_asset(caller_of(request), asset_id).files.prefetch_related("parts").filter(number__gte=cursor)
    listed = list(rows[: limit + 1])
    following = str(listed[limit].number) if len(listed) > limit else None
    shown = [AssetFileOut.of(row) for row in listed[:limit]]
    return Page(data=shown, has_more=following is not None, next_cursor=following)


@router.put(
    "/assets/{asset_id}/files/{number}/parts/{part}",
    auth=MAY_WRITE,
    response={204: None} | problems(400, 404, 409, 411, 413, 415, 422),
    summary="Upload a part",
    openapi_extra=PART_BODY,
)
def put(
    request: HttpRequest, asset_id: PathId, number: Number, part: Number, sha256: Annotated[Sha256, Query()]
) -> Status[None]:
    """The body is the part's bytes, as application/octet-stream: 16 MiB, or the rest for the last part of a file.
    Idempotent."""
    caller, now = caller_of(request), database_now()
    asset = the_own_asset(caller, asset_id)
    file = the_file(asset, number)
    if part >= num_parts(file.num_bytes):
        raise NotFound(f"{file.name} has {num_parts(file.num_bytes)} parts, counted from 0.")
    if asset.state != AssetState.UPLOADING:
        raise NotUploading()
    expected = part_bytes(file.num_bytes, part)
    with received(request, team=caller.team.pk, num_bytes=expected, sha256=sha256) as content:
        put_part(file, part, content, sha256=sha256, now=now)
    return Status(204, None)


@router.post(
    "/assets/{asset_id}/complete",
    auth=MAY_WRITE,
    response={200: AssetOut} | problems(400, 404, 409, 413, 415, 422),
    summary="Complete an upload",
)
def complete(request: HttpRequest, asset_id: PathId, body: CompleteUpload) -> AssetOut:
    """Verifies the upload and assigns a version. 409 `incomplete` names files that lack parts. 422: the bytes differ
    from the listing, or the model's files are inconsistent. Idempotent."""
    caller = caller_of(request)
    asset, _ = complete_upload(
        the_own_asset(caller, asset_id),
        num_bytes=body.num_bytes,
        sha256=body.sha256,
        actor=caller.actor,
        now=database_now(),
    )
    return AssetOut.of(asset)


@router.delete(
    "/assets/{asset_id}",
    auth=MAY_WRITE,
    response={204: None} | problems(404, 409),
    summary="Delete an asset or an upload",
)
def delete(request: HttpRequest, asset_id: PathId) -> Status[None]:
    """409 `in_use`: a job that has not ended uses it. Its version number is never reused; its bytes count as used until
    they are deleted, some minutes later."""
    caller = caller_of(request)
    delete_asset(the_own_asset(caller, asset_id).pk, actor=caller.actor, now=database_now())
    return Status(204, None)


@router.get("/storage", auth=MAY_READ, response={200: StorageOut} | problems(), summary="Get the team's storage")
def storage(request: HttpRequest) -> StorageOut:
    return StorageOut.of(storage_of(caller_of(request).team))


@router.put(
    "/storage/{team_id}",
    auth=MAY_OPERATE,
    response={200: StorageOut} | problems(400, 404, 413, 415, 422),
    summary="Set a team's storage limit",
)
def put_storage(request: HttpRequest, response: HttpResponse, team_id: PathId, body: ChangeStorage) -> StorageOut:
    """For operators. Existing assets are kept, even beyond the new limit."""
    team, actor = the_team(team_id), caller_of(request).actor
    return StorageOut.of(set_storage(team, body.max_bytes, actor=actor, now=database_now()))


def _project(caller: Caller, project_id: str | None) -> Project | None:
    """The project of a key that is limited to one, else the requested one."""
    limited_to = caller.key.project_id
    if project_id is not None and limited_to not in (None, project_id):
        raise Denied(f"This key can upload only for the project {limited_to}.")
    chosen = project_id or limited_to
    if chosen is None:
        return None
    project = projects_of(caller.team).filter(pk=chosen).first()
    if project is None:
        error = FieldError(pointer="/project", code="not_found", message="must be the id of a project of your team")
        raise NotFound("Project not found.", errors=[error])
    return project
