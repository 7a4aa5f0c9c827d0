"""A team's people, and who did what."""

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
    """The only answer that holds the link, unless that was mailed; its representation does not show it."""

    link: str = field(repr=False)
    mailed: bool


@record
class AuditEntry(Answer):
    """`hash` covers all of it and `previous_hash`: a team's entries are one chain."""

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
