"""REST: members of the key's team, and invitations."""

from typing import Annotated

from django.http import HttpRequest
from ninja import Router, Status
from pydantic import Field

from backend.accounts.acting import Acting
from backend.accounts.api import BODY, MAY_LOOK, MAY_RULE
from backend.accounts.keys.bearer import caller_of
from backend.accounts.models import Role
from backend.accounts.people.invitations import EMAIL, invite, link_of, mail, revoke_invitation
from backend.accounts.people.memberships import change_role, membership_of, remove_member
from backend.accounts.representations import (
    InvitationMade,
    InvitationOut,
    MemberOut,
    represent_invitation,
    represent_member,
)
from backend.accounts.selectors import members_of, open_invitations_of
from backend.api.pagination import DEFAULT_LIMIT, Cursor, Limit, Page, page_after
from backend.api.problems import problems
from backend.borders.types import OneLine, PathId
from backend.clock import database_now
from engine.spec.strict import Strict

router = Router(tags=["People"])
Email = Annotated[OneLine, Field(max_length=254, pattern=EMAIL.pattern)]


class RoleChange(Strict):
    role: Role


class InvitationWish(Strict):
    email: Email
    role: Role = Role.MEMBER


@router.get("/members", auth=MAY_LOOK, response={200: Page[MemberOut]} | problems(), summary="List members")
def members(request: HttpRequest) -> Page[MemberOut]:
    """All members, sorted by address. Service accounts are listed separately."""
    return Page(data=[represent_member(row) for row in members_of(caller_of(request).team)])


@router.get("/members/{user_id}", auth=MAY_LOOK, response={200: MemberOut} | problems(404), summary="Get a member")
def show_member(request: HttpRequest, user_id: PathId) -> MemberOut:
    return represent_member(membership_of(caller_of(request).team, user_id))


@router.patch(
    "/members/{user_id}",
    auth=MAY_RULE,
    response={200: MemberOut} | problems(404, 409, *BODY),
    summary="Change a member's role",
)
def patch_member(request: HttpRequest, user_id: PathId, body: RoleChange) -> MemberOut:
    """Only an owner on a page can grant or revoke the owner role. 409 `last_owner`: a team keeps an owner."""
    return represent_member(change_role(Acting.of(caller_of(request)), user_id, body.role, now=database_now()))


@router.delete(
    "/members/{user_id}", auth=MAY_RULE, response={204: None} | problems(404, 409), summary="Remove a member"
)
def delete_member(request: HttpRequest, user_id: PathId) -> Status[None]:
    """Revokes the member's keys of this team at once. Their jobs continue, and service accounts are kept."""
    remove_member(Acting.of(caller_of(request)), user_id, now=database_now())
    return Status(204, None)


@router.get(
    "/invitations", auth=MAY_LOOK, response={200: Page[InvitationOut]} | problems(422), summary="List open invitations"
)
def invitations(request: HttpRequest, cursor: Cursor = None, limit: Limit = DEFAULT_LIMIT) -> Page[InvitationOut]:
    rows, next_cursor = page_after(
        open_invitations_of(caller_of(request).team, now=database_now()), cursor=cursor, limit=limit
    )
    shown = [represent_invitation(row) for row in rows]
    return Page(data=shown, has_more=next_cursor is not None, next_cursor=next_cursor)


@router.post(
    "/invitations", auth=MAY_RULE, response={201: InvitationMade} | problems(409, *BODY), summary="Invite a member"
)
def post_invitation(request: HttpRequest, body: InvitationWish) -> Status[InvitationMade]:
    """The link works once, for this address, for seven days. A new invitation replaces an open one."""
    acting = Acting.of(caller_of(request))
    invitation, token = invite(acting, email=body.email, role=body.role, now=database_now())
    shown = represent_invitation(invitation).model_dump()
    mailed = mail(invitation, token)
    return Status(201, InvitationMade(**shown, link="" if mailed else link_of(token), mailed=mailed))


@router.delete(
    "/invitations/{invitation_id}",
    auth=MAY_RULE,
    response={204: None} | problems(404, 409),
    summary="Revoke an invitation",
)
def delete_invitation(request: HttpRequest, invitation_id: PathId) -> Status[None]:
    revoke_invitation(Acting.of(caller_of(request)), invitation_id, now=database_now())
    return Status(204, None)
