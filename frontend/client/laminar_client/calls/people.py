"""Members, invitations and the audit log of a team."""

from datetime import datetime

from ..answers.people import AuditEntry, Invitation, Member, NewInvitation
from ..wire import Procedure, Stream, delete, get, patch, post
from .pages import answer, each_of, nothing, whole_list


def members() -> Procedure[list[Member]]:
    """All members, by address; without service accounts."""
    return (yield from whole_list(Member, get("members")))


def change_member(user_id: str, role: str) -> Procedure[Member]:
    """`role`: owner, admin, member or viewer."""
    return (yield from answer(Member, patch("members", user_id, body={"role": role})))


def remove_member(user_id: str) -> Procedure[None]:
    """Their keys of this team are revoked at once."""
    return (yield from nothing(delete("members", user_id)))


def invitations(*, most: int | None = None) -> Stream[Invitation]:
    """Pending invitations."""
    return each_of(Invitation, "invitations", query={}, most=most)


def invite(email: str, *, role: str = "member") -> Procedure[NewInvitation]:
    """The only response with the link, which works once, for this address only."""
    return (yield from answer(NewInvitation, post("invitations", body={"email": email, "role": role})))


def revoke_invitation(invitation_id: str) -> Procedure[None]:
    return (yield from nothing(delete("invitations", invitation_id)))


def audit(
    *,
    actor: str | None = None,
    action: str | None = None,
    target: str | None = None,
    since: datetime | None = None,
    after: int = 0,
    most: int | None = None,
) -> Stream[AuditEntry]:
    """Who did what in the team, newest first. The key needs the scope audit:read."""
    query = {
        "actor": actor,
        "action": action,
        "target": target,
        "since": None if since is None else since.isoformat(),
        "after": after or None,
    }
    return each_of(AuditEntry, "audit-log", query=query, most=most)
