"""Of two concurrent requests for quota, or answers, one succeeds."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import pytest

from backend.accounts.acting import Acting
from backend.accounts.models import Role, Team, User
from backend.accounts.operators.acting import Operator
from backend.audit.models import AuditEntry
from backend.errors import Conflict
from backend.pools.models import ResourcePool
from backend.quota_requests.models import QuotaRequest
from backend.quota_requests.questions import answer, ask


@pytest.mark.django_db(transaction=True)
def test_of_two_that_ask_or_answer_at_once_one_does(
    team: Team, alice: User, pool: ResourcePool, now: datetime, in_own_connection: Callable[..., Any]
) -> None:
    acting = Acting(user=alice, team=team, role=Role.OWNER)
    person = Operator(user=User.objects.create_user("olga@example.org", is_staff=True))

    def once(act: Callable[[], object]) -> bool:
        try:
            act()
        except Conflict:
            return False
        return True

    def asks(_: int) -> bool:
        return once(lambda: ask(acting, pool, wanted=2, reason="A sweep", now=now))

    def answers(_: int) -> bool:
        return once(lambda: answer(person, QuotaRequest.objects.get().pk, granted=2, words="", if_match=None, now=now))

    for act in (asks, answers):
        with ThreadPoolExecutor(2) as threads:
            assert sorted(threads.map(in_own_connection(act), range(2))) == [False, True]
    assert AuditEntry.objects.filter(action="quota.changed").count() == 1
