"""REST over all teams and users of the site, for operators.

Invariant: no key gives its bearer access to existing data. A key can create a team with an invitation for its owner;
password reset links, and new owners of existing teams, are available to an operator on a page only.
"""

from datetime import datetime
from typing import Annotated, Final

from django.http import HttpRequest
from ninja import Query, Router, Status
from pydantic import BaseModel, Field

from backend.accounts.keys.bearer import ApiKeyAuth, caller_of
from backend.accounts.keys.scopes import OPERATES
from backend.accounts.models import Role, User
from backend.accounts.operators.acting import Operator
from backend.accounts.operators.people import close_account, end_sessions, open_account, people, people_after
from backend.accounts.operators.teams import LONGEST_NAME, all_teams, make_team
from backend.accounts.people.api import Email
from backend.accounts.people.invitations import link_of, mail
from backend.api.pagination import DEFAULT_LIMIT, Limit, Page
from backend.api.problems import problems
from backend.borders.types import OneLine, PathId
from backend.clock import database_now
from engine.spec.strict import Strict, Text

router = Router(tags=["Operators"])
MAY_OPERATE: Final = ApiKeyAuth(OPERATES)


class SiteTeamOut(BaseModel):
    id: str
    name: str
    num_people: int
    num_owners: int = Field(description="0: the invited owner has not joined yet, or the last owner is gone.")


class TeamWish(Strict):
    name: Annotated[OneLine, Field(max_length=LONGEST_NAME)]
    owner: Email = Field(description="Address to invite as the owner. The operator does not become a member.")


class TeamMade(BaseModel):
    team: str
    name: str
    owner: str
    link: str = Field(description="Invitation link to pass on, shown only once. Empty if it was mailed.")
    expires_at: datetime


class MembershipOut(BaseModel):
    team: str
    role: Role


class PersonOut(BaseModel):
    id: str
    email: str
    is_active: bool = Field(description="False: the account is closed.")
    is_operator: bool
    last_sign_in_at: datetime | None
    teams: list[MembershipOut]


class SessionsEnded(BaseModel):
    ended: int


@router.get("/operator/teams", auth=MAY_OPERATE, response={200: Page[SiteTeamOut]} | problems(), summary="List teams")
def teams(request: HttpRequest) -> Page[SiteTeamOut]:
    """For operators. Sorted by name."""
    Operator.speaking(caller_of(request), OPERATES)
    shown = [
        SiteTeamOut(id=each.team.pk, name=each.team.name, num_people=each.num_people, num_owners=each.num_owners)
        for each in all_teams()
    ]
    return Page(data=shown)


@router.post(
    "/operator/teams",
    auth=MAY_OPERATE,
    response={201: TeamMade} | problems(400, 409, 413, 415, 422),
    summary="Create a team",
)
def post_team(request: HttpRequest, body: TeamWish) -> Status[TeamMade]:
    """For operators. Creates the team with a first project, and an invitation for its owner that works once, for seven
    days. Then set its quota with PUT /pools/{pool_id}/quotas/{team_id}."""
    operator, now = Operator.speaking(caller_of(request), OPERATES), database_now()
    invitation, token = make_team(operator, name=body.name.strip(), owner=body.owner.lower(), now=now)
    mailed = mail(invitation, token)
    made = TeamMade(
        team=invitation.team_id,
        name=invitation.team.name,
        owner=invitation.email,
        link="" if mailed else link_of(token),
        expires_at=invitation.expires_at,
    )
    return Status(201, made)


@router.get(
    "/operator/people", auth=MAY_OPERATE, response={200: Page[PersonOut]} | problems(404, 422), summary="List users"
)
def list_people(
    request: HttpRequest,
    q: Annotated[Text | None, Query(max_length=120, description="Only addresses that contain this text.")] = None,
    after: Annotated[Text | None, Query(max_length=64, description="`next_cursor` of the previous page.")] = None,
    limit: Limit = DEFAULT_LIMIT,
) -> Page[PersonOut]:
    """For operators. Sorted by address, without service accounts."""
    Operator.speaking(caller_of(request), OPERATES)
    rows = list(people_after(people(q or ""), after)[: limit + 1])
    shown, has_more = rows[:limit], len(rows) > limit
    return Page(
        data=[_person(each) for each in shown],
        has_more=has_more,
        next_cursor=shown[-1].public_id if has_more else None,
    )


@router.post(
    "/operator/people/{user_id}/close",
    auth=MAY_OPERATE,
    response={200: PersonOut} | problems(404, 409),
    summary="Close an account",
)
def close_person(request: HttpRequest, user_id: PathId) -> PersonOut:
    """For operators. Ends the user's sessions at once and refuses their keys, in every team. Their jobs continue."""
    operator = Operator.speaking(caller_of(request), OPERATES)
    return _person(close_account(operator, user_id, now=database_now()))


@router.post(
    "/operator/people/{user_id}/open",
    auth=MAY_OPERATE,
    response={200: PersonOut} | problems(404),
    summary="Reopen an account",
)
def open_person(request: HttpRequest, user_id: PathId) -> PersonOut:
    """For operators. The account's password and keys work again."""
    operator = Operator.speaking(caller_of(request), OPERATES)
    return _person(open_account(operator, user_id, now=database_now()))


@router.post(
    "/operator/people/{user_id}/end-sessions",
    auth=MAY_OPERATE,
    response={200: SessionsEnded} | problems(404),
    summary="End a user's sessions",
)
def end_sessions_of(request: HttpRequest, user_id: PathId) -> SessionsEnded:
    """For operators. The account stays open."""
    operator = Operator.speaking(caller_of(request), OPERATES)
    _, number = end_sessions(operator, user_id, now=database_now())
    return SessionsEnded(ended=number)


def _person(user: User) -> PersonOut:
    return PersonOut(
        id=user.public_id,
        email=user.email,
        is_active=user.is_active,
        is_operator=user.is_staff,
        last_sign_in_at=user.last_login,
        teams=[MembershipOut(team=each.team_id, role=Role(each.role)) for each in user.memberships.all()],
    )
