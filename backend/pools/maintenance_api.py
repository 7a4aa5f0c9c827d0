"""REST over maintenance: every key reads announcements; operators announce, change and end maintenance."""

from datetime import datetime
from typing import Annotated, Final

from django.http import HttpRequest, HttpResponse
from ninja import Router, Status
from pydantic import BaseModel, Field

from backend.accounts.keys.bearer import ANY_KEY, ApiKeyAuth, caller_of
from backend.accounts.keys.scopes import OPERATES
from backend.accounts.operators.acting import Operator
from backend.api.etags import IfMatch, etag_of, tagged
from backend.api.pagination import Page
from backend.api.problems import problems
from backend.borders.types import OneLine, PathId, ZonedMoment
from backend.clock import database_now
from backend.pools.maintenance import (
    LONGEST_TEXT,
    MaintenanceTerms,
    announce,
    announced,
    change_maintenance,
    end_maintenance,
)
from backend.pools.models import Maintenance
from engine.spec.strict import Strict

router = Router(tags=["Operators"])
MAY_OPERATE: Final = ApiKeyAuth(OPERATES)


class MaintenanceOut(BaseModel):
    """Upcoming or current maintenance."""

    id: str
    text: str
    begins_at: datetime
    ends_at: datetime
    stops_from: datetime | None = Field(description="No job starts from then until the end. Null: jobs start.")
    is_under_way: bool


class MaintenanceIn(Strict):
    text: Annotated[OneLine, Field(max_length=LONGEST_TEXT, description="Description, shown to all users.")]
    begins_at: ZonedMoment
    ends_at: ZonedMoment = Field(description="When it ends by itself; at most 31 days after it begins.")
    stops_from: ZonedMoment | None = Field(
        None, description="No job starts from then until the end. Running jobs continue."
    )


@router.get("/maintenance", auth=ANY_KEY, response={200: Page[MaintenanceOut]} | problems(), summary="List maintenance")
def maintenance(request: HttpRequest) -> Page[MaintenanceOut]:
    """Upcoming and current maintenance, the next one first."""
    now = database_now()
    return Page(data=[_out(each, now) for each in announced(now)])


@router.post(
    "/maintenance",
    auth=MAY_OPERATE,
    response={201: MaintenanceOut} | problems(400, 413, 415, 422),
    summary="Announce maintenance",
)
def post_maintenance(request: HttpRequest, response: HttpResponse, body: MaintenanceIn) -> Status[MaintenanceOut]:
    """For operators."""
    operator, now = Operator.speaking(caller_of(request), OPERATES), database_now()
    return Status(201, _tagged(announce(operator, MaintenanceTerms(**body.model_dump()), now=now), response, now))


@router.put(
    "/maintenance/{notice_id}",
    auth=MAY_OPERATE,
    response={200: MaintenanceOut} | problems(400, 404, 412, 413, 415, 422),
    summary="Update maintenance",
)
def put_maintenance(
    request: HttpRequest, response: HttpResponse, notice_id: PathId, body: MaintenanceIn, if_match: IfMatch = None
) -> MaintenanceOut:
    """For operators."""
    operator, now = Operator.speaking(caller_of(request), OPERATES), database_now()
    terms = MaintenanceTerms(**body.model_dump())
    return _tagged(change_maintenance(operator, notice_id, terms, if_match=if_match, now=now), response, now)


@router.delete(
    "/maintenance/{notice_id}",
    auth=MAY_OPERATE,
    response={204: None} | problems(404, 412, 422),
    summary="End maintenance",
)
def delete_maintenance(request: HttpRequest, notice_id: PathId, if_match: IfMatch = None) -> Status[None]:
    """For operators. Ends it now, whatever was announced. Waiting jobs start."""
    operator = Operator.speaking(caller_of(request), OPERATES)
    end_maintenance(operator, notice_id, if_match=if_match, now=database_now())
    return Status(204, None)


def _tagged(notice: Maintenance, response: HttpResponse, now: datetime) -> MaintenanceOut:
    tagged(response, etag_of(notice.version))
    return _out(notice, now)


def _out(notice: Maintenance, now: datetime) -> MaintenanceOut:
    return MaintenanceOut(
        id=notice.pk,
        text=notice.text,
        begins_at=notice.begins_at,
        ends_at=notice.ends_at,
        stops_from=notice.stops_from,
        is_under_way=notice.begins_at <= now,
    )
