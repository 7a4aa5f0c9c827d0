"""A user's own events in the audit log: sign-ins, second factors, passwords, addresses, sessions.

Such an event belongs to no single team, and every team that relies on the user must see it. It is therefore written to
the chain of each team that the user is in at that moment. Events of a user in no team, such as an operator, or of an
address without an account are written to the site's chain, which is that of a team without members, for operators.

Invariants:
- completed actions are always written, in the transaction of the action; chains are locked in a fixed order;
- attempts, which strangers can repeat without end, are written up to a limit, per user and for all strangers together,
  and counted apart from completed actions, so that no flood hides a success.
"""

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from django.db import transaction

from backend.accounts.models import Membership, Team, User
from backend.api.limits.counters import take
from backend.audit.services import record_action

log = logging.getLogger(__name__)
SITE: Final = "team_of_the_site"
# (bucket, limit, seconds). Enough to see that attempts are made, and when; the web process logs the rest.
TRIES_AT_A_PERSON = ("audit-tries", 20, 3_600)  # per kind: denied requests do not hide failed sign-ins
TRIES_OF_STRANGERS = ("audit-strangers", 60, 3_600)


@transaction.atomic
def record_done(
    user: User, action: str, *, now: datetime, data: Mapping[str, Any] | None = None, actor: str = ""
) -> None:
    """Records an action of the user, or of `actor` on the user."""
    _record(_chains_of(user), user, action, now=now, data=data, actor=actor or f"user:{user.pk}")


def record_tried(
    user: User | None,
    action: str,
    *,
    now: datetime,
    data: Mapping[str, Any] | None = None,
    actor: str = "stranger",
    team_id: str = "",
) -> None:
    """Records a refused attempt by or on this user; in `team_id`'s chain alone if given. Unless an actor is named, the
    attempt's author is unknown."""
    bucket, limit, window_s = TRIES_AT_A_PERSON if user else TRIES_OF_STRANGERS
    kind = action.partition(".")[0]
    allowance = take(bucket, f"{user.pk if user else '-'}.{kind}", limit, window_s)
    log.info("refused action=%s person=%s written=%s", action, user.public_id if user else "-", allowance.allowed)
    if not allowance.allowed:
        return
    details = dict(data or {}) | ({} if allowance.remaining else {"not_written": "more of this within the hour"})
    with transaction.atomic():
        chains = [team_id] if team_id else _chains_of(user) if user else [site_chain()]
        _record(chains, user, action, now=now, data=details, actor=actor)


def _record(
    chains: Sequence[str], user: User | None, action: str, *, now: datetime, data: Mapping[str, Any] | None, actor: str
) -> None:
    target = user.public_id if user else "-"
    for team_id in chains:
        record_action(team_id=team_id, actor=actor, action=action, target=target, now=now, data=data)


def _chains_of(user: User) -> list[str]:
    """In a fixed order, so that concurrent writers of the same chains cannot deadlock."""
    teams = Membership.objects.filter(user_id=user.pk).order_by("team_id").values_list("team_id", flat=True)
    return list(teams) or [site_chain()]


def site_chain() -> str:
    """Creates the site's team with its first entry."""
    Team.objects.get_or_create(pk=SITE, defaults={"name": "This site"})
    return SITE
