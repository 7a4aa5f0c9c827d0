"""REST: budgets of a team's projects and members, and its own money. All members see them; owners and admins set those
of projects and members, an operator of the platform sets the team's."""

from datetime import datetime
from decimal import Decimal
from typing import Annotated, Literal

from django.http import HttpRequest, HttpResponse
from ninja import Router
from pydantic import BaseModel, Field

from backend.accounts.acting import Acting
from backend.accounts.keys.bearer import ApiKeyAuth, caller_of
from backend.api.etags import IfMatch, etag_of, tagged
from backend.api.pagination import Page
from backend.api.problems import problems
from backend.borders.types import PathId
from backend.budgets.limits import PLACES, LimitView, limits_of, set_limit, set_team_money, team_money
from backend.budgets.models import SpendingLimit, Unit
from backend.clock import database_now
from backend.pools.selectors import the_team
from backend.usage.pricing.money import exact_text
from backend.usage.pricing.prices import site_currency
from engine.spec.strict import Strict, Text

router = Router(tags=["Usage"])

MAY_SEE_USE = ApiKeyAuth("usage:read")
MAY_RULE = ApiKeyAuth("team:write")
MAY_OPERATE = ApiKeyAuth("quota:write")
Amount = Annotated[Text, Field(pattern=rf"^\d{{1,15}}(\.\d{{1,{PLACES}}})?$")]
UnitName = Literal["device_seconds", "money"]


class LimitOut(BaseModel):
    """A budget for the current calendar month (UTC), in exact decimals. Without project and user, it is the team's."""

    project_id: str | None
    user_id: str | None
    name: str
    unit: UnitName
    currency: str | None = Field(description="ISO 4217 code of a budget in money.")
    amount: str
    spent: str = Field(description="As billed so far.")
    committed: str = Field(description="The most that running jobs can still use.")
    left: str = Field(description="A job starts only if its maximum runtime fits.")


class LimitIn(Strict):
    amount: Amount | None = Field(description="A decimal as text; null removes the limit.")
    unit: UnitName = "device_seconds"


class MoneyIn(Strict):
    amount: Amount | None = Field(description="A decimal as text, in the site's currency; null removes the limit.")


class MoneyOut(BaseModel):
    """A team's money for the current calendar month (UTC), in exact decimals."""

    team_id: str
    currency: str
    amount: str | None = Field(description="Null: no limit.")
    spent: str = Field(description="As billed so far.")
    committed: str = Field(description="The most that running jobs can still use.")
    left: str | None = Field(description="A job starts only if its maximum runtime fits.")


@router.get(
    "/budgets/limits",
    auth=MAY_SEE_USE,
    response={200: Page[LimitOut]} | problems(),
    summary="List budgets of the team, its projects and members",
)
def limits(request: HttpRequest) -> Page[LimitOut]:
    currency = site_currency()
    return Page(data=[_represent(one, currency) for one in limits_of(caller_of(request).team, now=database_now())])


@router.put(
    "/budgets/projects/{project_id}",
    auth=MAY_RULE,
    response={204: None} | problems(400, 404, 412, 413, 415, 422),
    summary="Set a project's budget",
)
def put_project(
    request: HttpRequest, response: HttpResponse, project_id: PathId, body: LimitIn, if_match: IfMatch = None
) -> HttpResponse:
    """Running jobs continue to their end. The new limit applies to the next start."""
    return _set_limit(request, body, if_match, project=project_id)


@router.put(
    "/budgets/people/{user_id}",
    auth=MAY_RULE,
    response={204: None} | problems(400, 404, 412, 413, 415, 422),
    summary="Set a member's budget",
)
def put_person(
    request: HttpRequest, response: HttpResponse, user_id: PathId, body: LimitIn, if_match: IfMatch = None
) -> HttpResponse:
    """Limits what the member may spend in this team."""
    return _set_limit(request, body, if_match, person=user_id)


@router.put(
    "/budgets/{team_id}/money",
    auth=MAY_OPERATE,
    response={200: MoneyOut} | problems(400, 404, 412, 413, 415, 422),
    summary="Set a team's budget in money",
)
def put_money(
    request: HttpRequest, response: HttpResponse, team_id: PathId, body: MoneyIn, if_match: IfMatch = None
) -> MoneyOut:
    """For operators. Applies in addition to the team's GPU-seconds: new jobs wait once either is used up. Running jobs
    continue to their end; the new limit applies to the next start."""
    team, now = the_team(team_id), database_now()
    amount = None if body.amount is None else Decimal(body.amount)
    set_team_money(team, amount, if_match=if_match, actor=caller_of(request).actor, now=now)
    seen = team_money([team.pk], now=now)[team.pk]
    tagged(response, etag_of(seen.version))
    return MoneyOut(
        team_id=team.pk,
        currency=site_currency(),
        amount=None if seen.amount is None else exact_text(seen.amount),
        spent=exact_text(seen.spent),
        committed=exact_text(seen.committed),
        left=None if seen.left is None else exact_text(seen.left),
    )


def _set_limit(
    request: HttpRequest, body: LimitIn, if_match: str | None, *, project: str = "", person: str = ""
) -> HttpResponse:
    now: datetime = database_now()
    limit: SpendingLimit | None = set_limit(
        Acting.of(caller_of(request)),
        project=project,
        person=person,
        unit=body.unit,
        amount=None if body.amount is None else Decimal(body.amount),
        if_match=if_match,
        now=now,
    )
    response = HttpResponse(status=204)
    tagged(response, etag_of(limit.version if limit else 0))
    return response


def _represent(seen: LimitView, currency: str) -> LimitOut:
    limit = seen.limit
    return LimitOut(
        project_id=limit.project_id,
        user_id=limit.person.public_id if limit.person else None,
        name=seen.name,
        unit="money" if limit.unit == Unit.MONEY else "device_seconds",
        currency=currency if limit.unit == Unit.MONEY else None,
        amount=exact_text(limit.amount),
        spent=exact_text(seen.spent),
        committed=exact_text(seen.committed),
        left=exact_text(seen.left),
    )
