"""A person's own events in the audit log: sign-ins, second factors, passwords, addresses, sessions.

Such an event belongs to no team, and everybody who relies on the person must be able to see it. So it stands in the
chain of every team that the person is in at that moment. What happens to somebody in no team, to an operator above all,
or to an address that nobody has, stands in the chain of the site: that of a team without members, for operators.

Invariants:
- what was done is always written, in the transaction of what it tells of; chains are locked in one order;
- what was only tried may be tried by anybody and without end: it is written up to a bound, by person and for all
  strangers together, and is counted apart from what was done, so that no flood hides a success.
"""

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from django.db import transaction

from backend.accounts.models import Membership, Team, User
from backend.api.counters import take
from backend.audit.services import record_action

log = logging.getLogger(__name__)
SITE: Final = "team_of_the_site"
# (bucket, limit, seconds). Enough to see that somebody tries, and when; of the rest the log of the web process tells.
TRIES_AT_A_PERSON = ("audit-tries", 20, 3_600)  # of one kind: denied requests do not cover up failed sign-ins
TRIES_OF_STRANGERS = ("audit-strangers", 60, 3_600)


@transaction.atomic
def record_done(
    user: User, action: str, *, now: datetime, data: Mapping[str, Any] | None = None, actor: str = ""
) -> None:
    """Something that was done by the person, or to them by `actor`."""
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
    """Something that was refused, at this person or by them; in one team's chain alone if it is that team's. Nobody has
    proved who it was, unless an actor is named."""
    bucket, limit, window_s = TRIES_AT_A_PERSON if user else TRIES_OF_STRANGERS
    kind = action.partition(".")[0]
    allowance = take(bucket, f"{user.pk if user else '-'}.{kind}", limit, window_s)
    log.info("refused action=%s person=%s written=%s", action, user.public_id if user else "-", allowance.allowed)
    if not allowance.allowed:
        return
    told = dict(data or {}) | ({} if allowance.remaining else {"not_written": "more of this within the hour"})
    with transaction.atomic():
        chains = [team_id] if team_id else _chains_of(user) if user else [site_chain()]
        _record(chains, user, action, now=now, data=told, actor=actor)


def _record(
    chains: Sequence[str], user: User | None, action: str, *, now: datetime, data: Mapping[str, Any] | None, actor: str
) -> None:
    target = user.public_id if user else "-"
    for team_id in chains:
        record_action(team_id=team_id, actor=actor, action=action, target=target, now=now, data=data)


def _chains_of(user: User) -> list[str]:
    """In one order, so that two that write into the same ones do not wait for each other."""
    teams = Membership.objects.filter(user_id=user.pk).order_by("team_id").values_list("team_id", flat=True)
    return list(teams) or [site_chain()]


def site_chain() -> str:
    """Made when there is first something to write in it."""
    Team.objects.get_or_create(pk=SITE, defaults={"name": "This site"})
    return SITE
