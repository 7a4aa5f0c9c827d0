"""Invitations: how users join a team.

Invariants:
- an invitation is for one e-mail address, and only a user who has verified that address can use its link;
- an invitation made by a key ends with the key; a limited key cannot invite, since members are not limited;
- it works once, until it expires or is revoked; a row lock decides between concurrent uses;
- only a hash of the link is stored. A mailed link is not shown, so using it verifies the mailbox. A link that the
  sender passes on verifies it on the sender's word only (`addresses.claims` deals with that).
"""

import hashlib
import re
import secrets
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction

from backend.accounts.acting import Acting
from backend.accounts.addresses.proved import is_proved, is_taken
from backend.accounts.letters import send_letter
from backend.accounts.models import Invitation, Membership, Role, Team, User
from backend.accounts.people.ceilings import refuse_limited
from backend.errors import Conflict, Denied, NotFound

EMAIL = re.compile(r"^[^@\s\x00-\x1f]{1,64}@[^@\s\x00-\x1f.]+(\.[^@\s\x00-\x1f.]+)+$")
LASTS = timedelta(days=7)
MOST_OPEN = 200  # per team: bounds the mail that a stolen admin key can send


class AlreadyMember(Conflict):
    """A member of your team already has this address."""

    code = "already_member"


class TooManyInvitations(Conflict):
    """Your team has the maximum number of open invitations. Revoke some first."""

    code = "too_many_invitations"


class NotYours(Denied):
    """This invitation is for another email address. Sign in with that one."""

    code = "not_yours"


class AddressHasAccount(Conflict):
    """This address already has an account. Sign in to join."""

    code = "has_account"


@transaction.atomic
def invite(acting: Acting, *, email: str, role: Role, now: datetime) -> tuple[Invitation, str]:
    """The invitation and its token. Replaces an open invitation for the same address."""
    acting.refuse_unless_granting(role)
    if acting.key is not None:
        refuse_limited(acting.key, "cannot invite members")
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
        expires_at=_choose_expiry(acting, now=now),
        made_with=acting.key,
    )
    acting.record("member.invited", invitation.pk, now=now, data={"email": email, "role": role})
    return invitation, token


def _choose_expiry(acting: Acting, *, now: datetime) -> datetime:
    """No later than the key's expiry, so a stolen key leaves no link that outlives it."""
    usual = now + LASTS
    return min(usual, acting.key.expires_at or usual) if acting.key else usual


@transaction.atomic
def revoke_invitation(acting: Acting, invitation_id: str, *, now: datetime) -> None:
    acting.refuse_unless_ruling()
    invitation = Invitation.objects.select_for_update(no_key=True).filter(team=acting.team, pk=invitation_id).first()
    if invitation is None:
        raise NotFound
    if invitation.accepted_at is not None:
        raise Conflict("This invitation was accepted. Remove the member instead.", code="accepted")
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
    """Raises `NotFound` if the invitation is no longer open, `NotYours` if it is for another address."""
    opened = open_invitation(token, now=now)
    if opened is None:
        raise NotFound("This invitation was used or revoked, or has expired. Ask the sender for a new one.")
    if opened.email != user.email.lower() or not is_proved(user):
        raise NotYours
    Team.objects.select_for_update(no_key=True).get(pk=opened.team_id)
    num_taken = Invitation.objects.filter(pk=opened.pk, accepted_at=None, revoked_at=None).update(accepted_at=now)
    if num_taken != 1:
        raise NotFound("This invitation was used or revoked, or has expired. Ask the sender for a new one.")
    membership, _ = Membership.objects.get_or_create(team=opened.team, user=user, defaults={"role": opened.role})
    acting = Acting(user=user, team=opened.team, role=Role(membership.role))
    acting.record("member.joined", user.public_id, now=now, data={"invitation": opened.pk, "role": membership.role})
    return membership


@transaction.atomic
def sign_up(token: str, password: str, *, now: datetime) -> User:
    """Creates the user with the invited address, as a member of the inviting team."""
    invitation = open_invitation(token, now=now)
    if invitation is None:
        raise NotFound("This invitation was used or revoked, or has expired. Ask the sender for a new one.")
    if is_taken(invitation.email):
        raise AddressHasAccount
    user = User.objects.create_user(invitation.email, password, address_by_hand=not invitation.mailed)
    join(token, user, now=now)
    return user


def link_of(token: str) -> str:
    return f"{settings.ENVIRONMENT.public_url}/invitations/{token}"


def mail(invitation: Invitation, token: str) -> bool:
    """True if a mail was sent; then the link must not be shown to the sender, who otherwise passes it on."""
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
