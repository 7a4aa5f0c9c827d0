"""Invitations: how people come into a team.

Invariants:
- an invitation is for one e-mail address: whoever has not proved that one cannot use its link;
- one that a key made ends with the key, and a key that is limited makes none: who comes in is not limited;
- it works once, until it expires or is revoked; the row's lock decides between two that come at the same time;
- what is stored of a link is a hash. A link that was mailed is shown to nobody: using it proves the mailbox. One that
  the sender hands on proves it on the sender's word (`addresses.claims` says what that is worth).
"""

import hashlib
import re
import secrets
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction

from backend.accounts.acting import Acting
from backend.accounts.addresses.proved import is_proved, is_taken
from backend.accounts.ceilings import refuse_limited
from backend.accounts.letters import send_letter
from backend.accounts.models import Invitation, Membership, Role, Team, User
from backend.errors import Conflict, Denied, NotFound

EMAIL = re.compile(r"^[^@\s\x00-\x1f]{1,64}@[^@\s\x00-\x1f.]+(\.[^@\s\x00-\x1f.]+)+$")
LASTS = timedelta(days=7)
MOST_OPEN = 200  # of one team: a stolen admin's key sends no more mail than this


class AlreadyMember(Conflict):
    """Who has this address is a member of your team already."""

    code = "already_member"


class TooManyInvitations(Conflict):
    """Your team has as many open invitations as a team may have: revoke some."""

    code = "too_many_invitations"


class NotYours(Denied):
    """This invitation is for another e-mail address than yours."""

    code = "not_yours"


class AddressHasAccount(Conflict):
    """This address has an account: sign in to join."""

    code = "has_account"


@transaction.atomic
def invite(acting: Acting, *, email: str, role: Role, now: datetime) -> tuple[Invitation, str]:
    """The invitation and its token. A new one for the same address takes the place of the old one."""
    acting.refuse_unless_granting(role)
    if acting.key is not None:
        refuse_limited(acting.key, "invites nobody")
    email = email.lower()
    Team.objects.select_for_update(no_key=True).get(pk=acting.team.pk)
    if Membership.objects.filter(team=acting.team, user__email=email).exists():
        raise AlreadyMember
    open_now = Invitation.objects.filter(team=acting.team, accepted_at=None, revoked_at=None)
    open_now.filter(email=email).update(revoked_at=now)
    if open_now.filter(expires_at__gt=now).count() >= MOST_OPEN:
        raise TooManyInvitations
    token = secrets.token_urlsafe(32)
    invitation = Invitation.objects.create(
        team=acting.team,
        email=email,
        role=role,
        token_sha256=_digest(token),
        invited_by=acting.user,
        created_at=now,
        expires_at=_end_of(acting, now=now),
        made_with=acting.key,
    )
    acting.record("member.invited", invitation.pk, now=now, data={"email": email, "role": role})
    return invitation, token


def _end_of(acting: Acting, *, now: datetime) -> datetime:
    """Whoever took a key does not outlive it by a link."""
    usual = now + LASTS
    return min(usual, acting.key.expires_at or usual) if acting.key else usual


@transaction.atomic
def revoke_invitation(acting: Acting, invitation_id: str, *, now: datetime) -> None:
    acting.refuse_unless_ruling()
    invitation = Invitation.objects.select_for_update(no_key=True).filter(team=acting.team, pk=invitation_id).first()
    if invitation is None:
        raise NotFound
    if invitation.accepted_at is not None:
        raise Conflict("This invitation was accepted: remove the member instead.", code="accepted")
    if invitation.revoked_at is None:
        invitation.revoked_at = now
        invitation.save(update_fields=["revoked_at"])
        acting.record("invitation.revoked", invitation.pk, now=now, data={"email": invitation.email})


def open_invitation(token: str, *, now: datetime) -> Invitation | None:
    return (
        Invitation.objects.select_related("team", "invited_by")
        .filter(token_sha256=_digest(token), accepted_at=None, revoked_at=None, expires_at__gt=now)
        .first()
    )


def is_invited(email: str, *, now: datetime) -> bool:
    return Invitation.objects.filter(
        email=email.lower(), accepted_at=None, revoked_at=None, expires_at__gt=now
    ).exists()


@transaction.atomic
def join(token: str, user: User, *, now: datetime) -> Membership:
    """Raises `NotFound` if the invitation is not open any more, `NotYours` if it is somebody else's."""
    found = open_invitation(token, now=now)
    if found is None:
        raise NotFound("This invitation was used, revoked, or has expired.")
    if found.email != user.email.lower() or not is_proved(user):
        raise NotYours
    Team.objects.select_for_update(no_key=True).get(pk=found.team_id)
    taken = Invitation.objects.filter(pk=found.pk, accepted_at=None, revoked_at=None).update(accepted_at=now)
    if taken != 1:
        raise NotFound("This invitation was used, revoked, or has expired.")
    membership, _ = Membership.objects.get_or_create(team=found.team, user=user, defaults={"role": found.role})
    acting = Acting(user=user, team=found.team, role=Role(membership.role))
    acting.record("member.joined", user.public_id, now=now, data={"invitation": found.pk, "role": membership.role})
    return membership


@transaction.atomic
def sign_up(token: str, password: str, *, now: datetime) -> User:
    """A new user with the address that was invited, in the team that invited it."""
    found = open_invitation(token, now=now)
    if found is None:
        raise NotFound("This invitation was used, revoked, or has expired.")
    if is_taken(found.email):
        raise AddressHasAccount
    user = User.objects.create_user(found.email, password, address_by_hand=not found.mailed)
    join(token, user, now=now)
    return user


def link_of(token: str) -> str:
    return f"{settings.ENVIRONMENT.public_url}/invitations/{token}"


def mail(invitation: Invitation, token: str) -> bool:
    """True if a mail went out; then nobody but its receiver may see the link. Else the sender hands it on."""
    text = (
        f"{invitation.invited_by.email} invites you to the team {invitation.team.name} on Laminar.\n\n"
        f"{link_of(token)}\n\nThe link works once, for this address, until {invitation.expires_at:%d %B %Y}.\n"
    )
    mailed = send_letter(invitation.email, f"Join {invitation.team.name} on Laminar", text)
    if mailed:
        Invitation.objects.filter(pk=invitation.pk).update(mailed=True)
    return mailed


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()
