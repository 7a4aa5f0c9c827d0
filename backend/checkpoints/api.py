"""REST: checkpoints. Parse, call a service, represent."""

from typing import Annotated

from django.db import transaction
from django.http import HttpRequest, HttpResponse
from ninja import Query, Router, Status
from pydantic import Field, model_validator

from backend.accounts.keys.bearer import ApiKeyAuth, caller_of
from backend.api.etags import IfMatch, refuse_if_changed, tagged
from backend.api.pagination import DEFAULT_LIMIT, Cursor, Limit, Page, page_after
from backend.api.problems import problems
from backend.borders.types import PathId, ZonedMoment
from backend.checkpoints.downloads.downloading import handed_out
from backend.checkpoints.downloads.export import exported_parts, folder_name, tar_num_bytes
from backend.checkpoints.downloads.links import LASTS
from backend.checkpoints.models import GONE, CheckpointState
from backend.checkpoints.registry.versions import promote
from backend.checkpoints.representations import (
    CheckpointOut,
    DownloadOut,
    FileOut,
    ModelVersionOut,
    RetentionOut,
    tag_of,
)
from backend.checkpoints.selectors import (
    checkpoints_of,
    checkpoints_visible_to,
    retention_of,
    the_checkpoint,
)
from backend.checkpoints.services import (
    change_checkpoint,
    delete_checkpoint,
    locked_checkpoint,
    set_retention,
)
from backend.clock import database_now
from backend.jobs.selectors import the_job
from engine.spec.facts import MetricName
from engine.spec.strict import Strict, Text

router = Router(tags=["Checkpoints"])

MAY_READ = ApiKeyAuth("checkpoints:read")
MAY_WRITE = ApiKeyAuth("checkpoints:write")
MOST_OF_A_JOB = 200
LARGEST_TTL_S = 10 * 366 * 86_400
YEARS = range(2000, 2200)
"""Python and Postgres handle moments beyond these years differently."""
_PRESIGNED_S = int(LASTS.total_seconds())

ModelName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$", description="As in model.source.")]


class ChangeCheckpoint(Strict):
    """Changes of a checkpoint. Omitted fields stay unchanged."""

    pinned: bool | None = Field(None, description="A pinned checkpoint cannot be deleted.")
    expires_at: ZonedMoment | None = Field(None, description="Deleted after this time. Null: never because of its age.")

    @model_validator(mode="after")
    def _check_fields(self) -> "ChangeCheckpoint":
        if not self.model_fields_set:
            raise ValueError("pinned or expires_at is required")
        if self.expires_at is not None and self.expires_at.year not in YEARS:
            raise ValueError(f"expires_at must be in the years {YEARS.start} to {YEARS.stop - 1}")
        return self


class PromoteCheckpoint(Strict):
    name: ModelName
    note: Annotated[Text, Field(max_length=2_000)] = Field("", description="Notes on this version.")


class ChangeRetention(Strict):
    """Retention rules. They apply from the newest complete checkpoint back, which is always kept."""

    keep_last: int = Field(5, ge=1, le=1_000)
    keep_best: int = Field(1, ge=0, le=1_000)
    metric: MetricName = Field("reward/mean", description="Metric for keep_best; the highest value is the best.")
    ttl_s: int | None = Field(None, ge=60, le=LARGEST_TTL_S, description="Age limit of those beyond keep_last.")


@router.get(
    "/jobs/{job_id}/checkpoints",
    auth=MAY_READ,
    response={200: Page[CheckpointOut]} | problems(404),
    summary="List a job's checkpoints",
)
def checkpoints_of_job(request: HttpRequest, job_id: PathId) -> Page[CheckpointOut]:
    """Newest first. The first `complete` one is where the next attempt would resume."""
    rows = list(checkpoints_of(the_job(caller_of(request).team, job_id))[: MOST_OF_A_JOB + 1])
    return Page(data=[CheckpointOut.of(row) for row in rows[:MOST_OF_A_JOB]], has_more=len(rows) > MOST_OF_A_JOB)


@router.get(
    "/jobs/{job_id}/retention",
    auth=MAY_READ,
    response={200: RetentionOut} | problems(404),
    summary="Get retention rules",
)
def show_retention(request: HttpRequest, job_id: PathId) -> RetentionOut:
    return RetentionOut.of(retention_of(the_job(caller_of(request).team, job_id)))


@router.put(
    "/jobs/{job_id}/retention",
    auth=MAY_WRITE,
    response={200: RetentionOut} | problems(400, 404, 413, 415, 422),
    summary="Set retention rules",
)
def put_retention(request: HttpRequest, job_id: PathId, body: ChangeRetention) -> RetentionOut:
    caller = caller_of(request)
    job = the_job(caller.team, job_id)
    return RetentionOut.of(set_retention(job, actor=caller.actor, now=database_now(), **body.model_dump()))


@router.get(
    "/checkpoints", auth=MAY_READ, response={200: Page[CheckpointOut]} | problems(422), summary="List checkpoints"
)
def list_checkpoints(
    request: HttpRequest,
    state: Annotated[list[CheckpointState], Query()] = [],  # noqa: B006  # ninja wants the list itself
    pinned: Annotated[bool | None, Query()] = None,
    cursor: Cursor = None,
    limit: Limit = DEFAULT_LIMIT,
) -> Page[CheckpointOut]:
    """Newest first. Deleted checkpoints are included only if `state` names them."""
    visible = checkpoints_visible_to(caller_of(request).team)
    visible = visible.filter(state__in=state) if state else visible.exclude(state__in=GONE)
    if pinned is not None:
        visible = visible.filter(pinned=pinned)
    rows, next_cursor = page_after(visible, cursor=cursor, limit=limit)
    return Page(data=[CheckpointOut.of(row) for row in rows], has_more=next_cursor is not None, next_cursor=next_cursor)


@router.get(
    "/checkpoints/{checkpoint_id}",
    auth=MAY_READ,
    response={200: CheckpointOut} | problems(404),
    summary="Get a checkpoint",
)
def show(request: HttpRequest, response: HttpResponse, checkpoint_id: PathId) -> CheckpointOut:
    """The ETag changes when the checkpoint is pinned, dated or deleted. Send it as If-Match to change it."""
    checkpoint = the_checkpoint(caller_of(request).team, checkpoint_id)
    tagged(response, tag_of(checkpoint))
    return CheckpointOut.of(checkpoint)


@router.patch(
    "/checkpoints/{checkpoint_id}",
    auth=MAY_WRITE,
    response={200: CheckpointOut} | problems(400, 404, 409, 412, 413, 415, 422),
    summary="Pin a checkpoint or set its expiry",
)
def change(
    request: HttpRequest,
    response: HttpResponse,
    checkpoint_id: PathId,
    body: ChangeCheckpoint,
    if_match: IfMatch = None,
) -> CheckpointOut:
    """409 `promoted`: the checkpoint is a version of a model and cannot be unpinned."""
    caller, now = caller_of(request), database_now()
    checkpoint = the_checkpoint(caller.team, checkpoint_id)
    with transaction.atomic():
        refuse_if_changed(if_match, tag_of(locked_checkpoint(checkpoint.pk)))
        changed = change_checkpoint(
            checkpoint.pk,
            actor=caller.actor,
            now=now,
            pinned=body.pinned,
            expires_at=body.expires_at,
            has_expiry="expires_at" in body.model_fields_set,
        )
    tagged(response, tag_of(changed))
    return CheckpointOut.of(changed)


@router.delete(
    "/checkpoints/{checkpoint_id}",
    auth=MAY_WRITE,
    response={204: None} | problems(404, 409, 412, 422, 425),
    summary="Delete a checkpoint",
)
def delete(request: HttpRequest, checkpoint_id: PathId, if_match: IfMatch = None) -> Status[None]:
    """409 `pinned`, or `in_use` by a job that has not ended. 425: it is still being written."""
    caller, now = caller_of(request), database_now()
    checkpoint = the_checkpoint(caller.team, checkpoint_id)
    with transaction.atomic():
        refuse_if_changed(if_match, tag_of(locked_checkpoint(checkpoint.pk)))
        delete_checkpoint(checkpoint.pk, actor=caller.actor, now=now)
    return Status(204, None)


@router.post(
    "/checkpoints/{checkpoint_id}/download",
    auth=MAY_READ,
    response={200: DownloadOut} | problems(404, 409, 425),
    summary="Get a download link",
)
def download(request: HttpRequest, checkpoint_id: PathId) -> DownloadOut:
    """The model as a Hugging Face folder in one .tar, behind a link that is valid for five minutes."""
    caller, now = caller_of(request), database_now()
    checkpoint = the_checkpoint(caller.team, checkpoint_id)
    url, expires_at, files = handed_out(checkpoint, actor=caller.actor, now=now)
    return DownloadOut(
        url=url,
        expires_at=expires_at,
        filename=f"{folder_name(checkpoint)}.tar",
        num_bytes=tar_num_bytes(checkpoint),
        files=[
            FileOut(
                name=name,
                num_bytes=part.num_bytes,
                sha256=part.sha256,
                url=files.url(part, expires_in_s=_PRESIGNED_S),
            )
            for name, part in exported_parts(checkpoint).items()
        ],
    )


@router.post(
    "/checkpoints/{checkpoint_id}/promote",
    auth=MAY_WRITE,
    response={201: ModelVersionOut, 200: ModelVersionOut} | problems(400, 404, 409, 413, 415, 422, 425),
    summary="Promote to a model version",
)
def promote_checkpoint(request: HttpRequest, checkpoint_id: PathId, body: PromoteCheckpoint) -> Status[ModelVersionOut]:
    """201: a new version; the checkpoint is pinned. 200: the checkpoint already is a version of this model."""
    caller = caller_of(request)
    checkpoint = the_checkpoint(caller.team, checkpoint_id)
    version, is_new = promote(checkpoint.pk, name=body.name, note=body.note, actor=caller.actor, now=database_now())
    return Status(201 if is_new else 200, ModelVersionOut.of(version, version.model))
