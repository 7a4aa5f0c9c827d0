"""REST: the model registry. Parse, call a service, represent."""

from dataclasses import asdict
from typing import Annotated

from django.db import transaction
from django.http import HttpRequest, HttpResponse
from ninja import Path, Router, Status
from pydantic import Field

from backend.accounts.keys.bearer import ApiKeyAuth, caller_of
from backend.accounts.models import Role
from backend.accounts.services import Caller
from backend.api.etags import IfMatch, etag_of, refuse_if_changed, tagged
from backend.api.pagination import DEFAULT_LIMIT, Cursor, Limit, Page, page_after
from backend.api.problems import problems
from backend.borders.types import PathId
from backend.checkpoints.registry.uploads import uploads_of
from backend.checkpoints.registry.versions import (
    change_note,
    locked_model,
    locked_version,
    remove_model,
    remove_version,
)
from backend.checkpoints.representations import ModelOut, ModelVersionOut, ModelWithVersionsOut, UploadedVersionOut
from backend.checkpoints.selectors import models_of, the_model, the_version, versions_of
from backend.clock import database_now
from backend.errors import Denied
from engine.spec.strict import Strict, Text

router = Router(tags=["Models"])

MAY_READ = ApiKeyAuth("checkpoints:read")
MAY_WRITE = ApiKeyAuth("checkpoints:write")
MAY_REMOVE = frozenset({Role.ADMIN, Role.OWNER})
MOST_OF_A_MODEL = 200
Number = Annotated[int, Path(ge=1, le=2**31 - 1)]


class ChangeVersion(Strict):
    note: Annotated[Text, Field(max_length=2_000)]


@router.get("/models", auth=MAY_READ, response={200: Page[ModelOut]} | problems(422), summary="List models")
def list_models(request: HttpRequest, cursor: Cursor = None, limit: Limit = DEFAULT_LIMIT) -> Page[ModelOut]:
    """Newest first."""
    rows, next_cursor = page_after(models_of(caller_of(request).team), cursor=cursor, limit=limit)
    return Page(data=[ModelOut.of(row) for row in rows], has_more=next_cursor is not None, next_cursor=next_cursor)


@router.get(
    "/models/{model_name}", auth=MAY_READ, response={200: ModelWithVersionsOut} | problems(404), summary="Get a model"
)
def show_model(request: HttpRequest, response: HttpResponse, model_name: PathId) -> ModelWithVersionsOut:
    """The ETag changes when a version is added or removed."""
    model = the_model(caller_of(request).team, model_name)
    tagged(response, etag_of(model.revision))
    versions = versions_of(model)[:MOST_OF_A_MODEL]
    uploads = [UploadedVersionOut(**asdict(upload)) for upload in uploads_of()(model)[:MOST_OF_A_MODEL]]
    return ModelWithVersionsOut(
        **ModelOut.of(model).model_dump(),
        versions=[ModelVersionOut.of(row, model) for row in versions],
        uploads=uploads,
    )


@router.delete(
    "/models/{model_name}",
    auth=MAY_WRITE,
    response={204: None} | problems(404, 409, 412, 422),
    summary="Delete a model",
)
def delete_model(request: HttpRequest, model_name: PathId, if_match: IfMatch = None) -> Status[None]:
    """For admins and owners of the team. 409 `has_versions`: remove its versions first. A later model of this name
    continues the version numbers."""
    caller, now = caller_of(request), database_now()
    model = the_model(caller.team, model_name)
    _refuse_others(caller)
    with transaction.atomic():
        locked = locked_model(model)
        refuse_if_changed(if_match, etag_of(locked.revision))
        remove_model(locked, actor=caller.actor, now=now)
    return Status(204, None)


@router.get(
    "/models/{model_name}/versions/{number}",
    auth=MAY_READ,
    response={200: ModelVersionOut} | problems(404, 422),
    summary="Get a model version",
)
def show_version(request: HttpRequest, response: HttpResponse, model_name: PathId, number: Number) -> ModelVersionOut:
    model = the_model(caller_of(request).team, model_name)
    version = the_version(model, number)
    tagged(response, etag_of(version.revision))
    return ModelVersionOut.of(version, model)


@router.patch(
    "/models/{model_name}/versions/{number}",
    auth=MAY_WRITE,
    response={200: ModelVersionOut} | problems(400, 404, 412, 413, 415, 422),
    summary="Change a version's note",
)
def change_version(
    request: HttpRequest,
    response: HttpResponse,
    model_name: PathId,
    number: Number,
    body: ChangeVersion,
    if_match: IfMatch = None,
) -> ModelVersionOut:
    """The note is the only field of a version that can change."""
    caller, now = caller_of(request), database_now()
    model = the_model(caller.team, model_name)
    with transaction.atomic():
        locked = locked_version(the_version(model, number))
        refuse_if_changed(if_match, etag_of(locked.revision))
        changed = change_note(locked, body.note, actor=caller.actor, now=now)
    tagged(response, etag_of(changed.revision))
    return ModelVersionOut.of(changed, model)


@router.delete(
    "/models/{model_name}/versions/{number}",
    auth=MAY_WRITE,
    response={204: None} | problems(404, 412, 422),
    summary="Delete a version",
)
def delete_version(request: HttpRequest, model_name: PathId, number: Number, if_match: IfMatch = None) -> Status[None]:
    """Undoes the promotion. For admins and owners of the team. The checkpoint stays, still pinned; the version number
    is never reused."""
    caller, now = caller_of(request), database_now()
    version = the_version(the_model(caller.team, model_name), number)
    _refuse_others(caller)
    with transaction.atomic():
        locked_model(version.model)  # before its versions, as in a promotion
        locked = locked_version(version)
        refuse_if_changed(if_match, etag_of(locked.revision))
        remove_version(locked, actor=caller.actor, now=now)
    return Status(204, None)


def _refuse_others(caller: Caller) -> None:
    if caller.role not in MAY_REMOVE:
        raise Denied("Only admins and owners of the team can remove models and versions.")
