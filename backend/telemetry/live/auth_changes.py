"""Notices to the live hubs that a user may have lost the right to watch.

Invariant: the notice is sent with the commit of the change, so a check after the notice sees the change.
"""

from typing import Any

from django.contrib.sessions.models import Session
from django.db import connection
from django.db.models.signals import post_delete, post_save
from django.dispatch import receiver

from backend.accounts.models import Membership, User
from backend.telemetry.live.hub import AUTH_CHANNEL, session_notice, user_notice


@receiver(post_delete, sender=Session, dispatch_uid="live_session_ended")
def _session_ended(instance: Session, **_: Any) -> None:
    _notify(session_notice(instance.session_key))


@receiver(post_save, sender=User, dispatch_uid="live_user_changed")
def _user_changed(instance: User, *, created: bool, **_: Any) -> None:
    if not created:
        _notify(user_notice(instance.pk))


@receiver([post_save, post_delete], sender=Membership, dispatch_uid="live_membership_changed")
def _membership_changed(instance: Membership, **_: Any) -> None:
    _notify(user_notice(instance.user_id))


def _notify(payload: str) -> None:
    with connection.cursor() as db:
        db.execute("SELECT pg_notify(%s, %s)", [AUTH_CHANNEL, payload])
