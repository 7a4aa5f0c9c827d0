"""REST: credits given by operators."""

from datetime import datetime
from typing import Annotated, Final, Self

from django.http import HttpRequest
from ninja import Query, Router, Status
from pydantic import BaseModel, Field

from backend.accounts.keys.bearer import ApiKeyAuth, caller_of
from backend.accounts.operators.acting import Operator
from backend.api.pagination import Page
from backend.api.problems import problems
from backend.borders.types import OneLine, PathId, read_count
from backend.clock import database_now
from backend.usage.credits.crediting import LONGEST_REASON, MOST_SHOWN, all_credits, give_credit, take_back_credit
from backend.usage.models import AttemptCredit
from engine.spec.strict import Ordinal, Strict, Text

router = Router(tags=["Operators"])
_SCOPE: Final = "quota:write"
MAY_OPERATE: Final = ApiKeyAuth(_SCOPE)


class CreditIn(Strict):
    job: Annotated[Text, Field(max_length=32)]
    attempt: Ordinal
    reason: Annotated[OneLine, Field(min_length=1, max_length=LONGEST_REASON)] = Field(
        description="Shown to the team, next to its usage."
    )


class CreditOut(BaseModel):
    id: str
    team: str
    job: str
    attempt: int
    reason: str
    given_at: datetime
    taken_back_at: datetime | None

    @classmethod
    def of(cls, credit: AttemptCredit) -> Self:
        return cls(
            id=str(credit.pk),
            team=credit.attempt.job.team_id,
            job=credit.attempt.job_id,
            attempt=credit.attempt.n,
            reason=credit.reason,
            given_at=credit.given_at,
            taken_back_at=credit.taken_back_at,
        )


@router.get(
    "/operator/credits", auth=MAY_OPERATE, response={200: Page[CreditOut]} | problems(422), summary="List credits"
)
def list_credits(
    request: HttpRequest, job: Annotated[Text | None, Query(max_length=32, description="Only of this job.")] = None
) -> Page[CreditOut]:
    """For operators. The newest 100, with those taken back."""
    Operator.speaking(caller_of(request), _SCOPE)
    return Page(data=[CreditOut.of(credit) for credit in all_credits(job or "")[:MOST_SHOWN]])


@router.post(
    "/operator/credits",
    auth=MAY_OPERATE,
    response={201: CreditOut} | problems(400, 404, 409, 413, 415, 422),
    summary="Credit an attempt",
)
def post_credit(request: HttpRequest, body: CreditIn) -> Status[CreditOut]:
    """For operators. Credits the fault time of an ended attempt, as if the platform had caused its failure. The same
    call twice gives one credit. 409 `attempt_runs`, `credited_already`, `nothing_to_credit`."""
    operator = Operator.speaking(caller_of(request), _SCOPE)
    credit = give_credit(operator, body.job, body.attempt, reason=body.reason.strip(), now=database_now())
    return Status(201, CreditOut.of(credit))


@router.post(
    "/operator/credits/{credit_id}/take-back",
    auth=MAY_OPERATE,
    response={200: CreditOut} | problems(404),
    summary="Take a credit back",
)
def post_take_back(request: HttpRequest, credit_id: PathId) -> CreditOut:
    """For operators. The attempt's fault time is billed again."""
    operator = Operator.speaking(caller_of(request), _SCOPE)
    return CreditOut.of(take_back_credit(operator, read_count(credit_id) or 0, now=database_now()))
