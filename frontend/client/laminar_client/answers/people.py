"""A team's members, invitations and audit log."""

from dataclasses import field
from datetime import datetime
from typing import Any

from .record import Answer, record


@record
class Member(Answer):
    id: str
    email: str
    role: str
    last_sign_in_at: datetime | None


@record
class Invitation(Answer):
    id: str
    email: str
    role: str
    invited_by: str
    created_at: datetime
    expires_at: datetime


@record
class NewInvitation(Invitation):
    """The only response with the link, unless the link was mailed; `repr` does not show it."""

    link: str = field(repr=False)
    mailed: bool


@record
class AuditEntry(Answer):
    """`hash` covers the entry and `previous_hash`, so a team's entries form a chain."""

    seq: int
    at: datetime
    actor: str
    action: str
    target: str
    data: dict[str, Any]
    request_id: str
    ip: str
    previous_hash: str
    hash: str
