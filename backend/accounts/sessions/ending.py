"""Ending sessions: by the user, and after their limits.

Invariant: a session is ended by deleting its row through the model, so that its sockets close and its list is right.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from django.contrib.sessions.models import Session
from django.db import transaction
from django.db.models import Q

from backend.accounts.models import SignedIn, User
from backend.accounts.sessions.devices import device_of
from backend.accounts.sessions.following import idle_limit, whole_limit
from backend.accounts.signing_in.chains import record_done
from backend.errors import NotFound

_AT_ONCE: Final = 500


def sessions_of(user: User, *, now: datetime) -> Sequence[SignedIn]:
    """The user's live sessions, the most recently used first."""
    live = SignedIn.objects.filter(user=user, session__expire_date__gt=now).exclude(_over(now))
    return list(live.order_by("-seen_at", "pk"))


@transaction.atomic
def end_session(user: User, public_id: str, *, now: datetime) -> None:
    """Raises `NotFound`, also for another user's session."""
    row = SignedIn.objects.filter(user=user, public_id=public_id).first()
    if row is None:
        raise NotFound
    Session.objects.filter(pk=row.pk).delete()
    data = {"device": device_of(row.user_agent), "address": row.ip}
    record_done(user, "session.ended", now=now, data=data)


@transaction.atomic
def end_other_sessions(user: User, *, keep: str | None, now: datetime, actor: str = "") -> int:
    ended = list(SignedIn.objects.filter(user=user).exclude(pk=keep).values_list("pk", flat=True))
    Session.objects.filter(pk__in=ended).delete()
    if ended:
        record_done(user, "session.others_ended", now=now, data={"number": len(ended)}, actor=actor)
    return len(ended)


def forget_sessions(*, now: datetime) -> int:
    """Deletes sessions that are over; returns how many."""
    over = Q(expire_date__lt=now) | Q(signed_in__in=SignedIn.objects.filter(_over(now)))
    session_keys = list(Session.objects.filter(over).values_list("pk", flat=True)[:_AT_ONCE])
    Session.objects.filter(pk__in=session_keys).delete()
    return len(session_keys)


def _over(now: datetime) -> Q:
    return Q(seen_at__lt=now - idle_limit()) | Q(began_at__lt=now - whole_limit())
