"""Members of a team: changing a role, leaving, being removed.

Invariants:
- a team keeps an owner; a trigger in the migration enforces this for writers that bypass this module;
- ending a membership revokes the user's keys of that team, at once and for good: rejoining does not restore them;
- open pages are notified (telemetry receives the signals of every saved and deleted membership).
"""

from datetime import datetime

from django.db import transaction

from backend.accounts.acting import Acting
from backend.accounts.models import ApiKey, Membership, Role, Team
from backend.accounts.services import revoke_keys
from backend.errors import Conflict, NotFound


class LastOwner(Conflict):
    """A team needs at least one owner. Make another member an owner first."""

    code = "last_owner"


@transaction.atomic
def change_role(acting: Acting, user_id: str, role: Role, *, now: datetime) -> Membership:
    _lock(acting.team)
    member = membership_of(acting.team, user_id)
    before = Role(member.role)
    acting.refuse_unless_granting(before, role)
    if before == role:
        return member
    if before == Role.OWNER:
        _refuse_last_owner(member)
    member.role = role
    member.save(update_fields=["role"])
    acting.record("member.role_changed", member.user.public_id, now=now, data={"from": before, "to": role})
    return member


@transaction.atomic
def remove_member(acting: Acting, user_id: str, *, now: datetime) -> None:
    """Removes another member or the actor, who may always leave. A key cannot make its owner leave."""
    _lock(acting.team)
    member = membership_of(acting.team, user_id)
    leaves = acting.key is None and member.user_id == acting.user.pk
    if not leaves:
        acting.refuse_unless_granting(Role(member.role))
    if member.role == Role.OWNER:
        _refuse_last_owner(member)
    revoked = revoke_keys(ApiKey.objects.filter(team=acting.team, owner=member.user, revoked_at=None), now=now)
    role = member.role
    member.delete()
    action = "member.left" if leaves else "member.removed"
    acting.record(action, member.user.public_id, now=now, data={"role": role, "keys_revoked": revoked})


def membership_of(team: Team, user_id: str) -> Membership:
    """By the user's public id. Service accounts are not listed as members."""
    membership = (
        Membership.objects.select_related("user")
        .filter(team=team, user__public_id=user_id, user__is_service=False)
        .first()
    )
    if membership is None:
        raise NotFound
    return membership


def _lock(team: Team) -> None:
    """Serializes changes to one team's members."""
    Team.objects.select_for_update(no_key=True).get(pk=team.pk)


def _refuse_last_owner(member: Membership) -> None:
    others = Membership.objects.filter(team=member.team_id, role=Role.OWNER).exclude(pk=member.pk)
    if not others.exists():
        raise LastOwner
