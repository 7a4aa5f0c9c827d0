"""First OpenID sign-in to an account whose address was never verified by its owner.

An invitation that was not mailed is a link in its sender's hands. The sender may have opened it, chosen a password, and
wait for the owner of the address to sign in by OpenID and work in an account that both control.

Invariant: from then on only the owner has access. Password, second factors, sessions, keys and open links from before
are removed; the memberships stay, since the owner was invited to them.
"""

from datetime import datetime

from allauth.mfa.models import Authenticator
from django.db import transaction

from backend.accounts.models import ApiKey, User
from backend.accounts.services import revoke_keys
from backend.accounts.signing_in.chains import record_done


@transaction.atomic
def claim(user: User, *, now: datetime) -> None:
    locked = User.objects.select_for_update(no_key=True).get(pk=user.pk)
    if not locked.address_by_hand:
        return
    locked.address_by_hand = False
    locked.set_unusable_password()  # a new hash ends all sessions
    locked.save(update_fields=["address_by_hand", "password"])
    Authenticator.objects.filter(user_id=user.pk).delete()
    locked.reset_links.all().delete()
    locked.address_changes.filter(done_at=None, cancelled_at=None).update(cancelled_at=now)
    revoke_keys(ApiKey.objects.filter(owner=locked, revoked_at=None), now=now)
    record_done(locked, "account.claimed", now=now, data={"by": "OpenID"})
    user.password, user.address_by_hand = locked.password, False
