"""REST representations of users, keys and invitations. They never contain a secret or its hash."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field

from backend.accounts.models import ApiKey, Invitation, Membership, Project, Role, ServiceAccount, Team


class Named(BaseModel):
    id: str
    name: str


class TeamOut(Named):
    role: Role = Field(description="Your role in the team, as far as this key carries it.")
    requires_mfa: bool = Field(description="Whether owners and admins need a second factor to use their rights.")
    created_at: datetime


class ProjectOut(BaseModel):
    id: str
    name: str
    created_at: datetime


class MemberOut(BaseModel):
    id: str
    email: str
    role: Role
    last_sign_in_at: datetime | None


class InvitationOut(BaseModel):
    id: str
    email: str
    role: Role
    invited_by: str
    created_at: datetime
    expires_at: datetime


class InvitationMade(InvitationOut):
    link: str = Field(description="The invitation link, shown only once. Empty if it was mailed.")
    mailed: bool = Field(description="Whether the link was mailed to the address. If not, pass it on yourself.")


class ServiceAccountOut(BaseModel):
    id: str
    name: str
    role: Role
    project: str | None
    created_at: datetime


class KeyOwner(BaseModel):
    kind: Literal["user", "service_account"]
    id: str
    name: str


class ApiKeyOut(BaseModel):
    id: str
    name: str
    prefix: str
    state: Literal["live", "expired", "revoked"]
    owner: KeyOwner
    scopes: list[str]
    project: str | None
    max_devices: int | None
    max_gpu_hours: float | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None


class ApiKeyMade(ApiKeyOut):
    secret: str = Field(description="The key itself, shown only once.")


def represent_team(team: Team, role: Role) -> TeamOut:
    return TeamOut(id=team.pk, name=team.name, role=role, requires_mfa=team.requires_mfa, created_at=team.created_at)


def represent_project(project: Project) -> ProjectOut:
    return ProjectOut(id=project.pk, name=project.name, created_at=project.created_at)


def represent_member(member: Membership) -> MemberOut:
    user = member.user
    return MemberOut(id=user.public_id, email=user.email, role=Role(member.role), last_sign_in_at=user.last_login)


def represent_invitation(invitation: Invitation) -> InvitationOut:
    return InvitationOut(
        id=invitation.pk,
        email=invitation.email,
        role=Role(invitation.role),
        invited_by=invitation.invited_by.email,
        created_at=invitation.created_at,
        expires_at=invitation.expires_at,
    )


def represent_service_account(account: ServiceAccount, role: Role) -> ServiceAccountOut:
    return ServiceAccountOut(
        id=account.pk, name=account.name, role=role, project=account.project_id, created_at=account.created_at
    )


def represent_key(key: ApiKey, *, now: datetime) -> ApiKeyOut:
    return ApiKeyOut(
        id=key.pk,
        name=key.name,
        prefix=key.prefix,
        state=state_of(key, now=now),
        owner=_owner_of(key),
        scopes=list(key.scopes),
        project=key.project_id,
        max_devices=key.max_devices,
        max_gpu_hours=float(key.max_gpu_hours) if key.max_gpu_hours is not None else None,
        created_at=key.created_at,
        expires_at=key.expires_at,
        revoked_at=key.revoked_at,
        last_used_at=key.last_used_at,
    )


def state_of(key: ApiKey, *, now: datetime) -> Literal["live", "expired", "revoked"]:
    if key.revoked_at is not None:
        return "revoked"
    return "expired" if key.expires_at is not None and key.expires_at <= now else "live"


def _owner_of(key: ApiKey) -> KeyOwner:
    if key.owner.is_service:
        account = key.owner.service_account
        return KeyOwner(kind="service_account", id=account.pk, name=account.name)
    return KeyOwner(kind="user", id=key.owner.public_id, name=key.owner.email)
