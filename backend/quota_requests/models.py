"""A team's request for a larger quota in a pool, and an operator's answer.

Invariants, also enforced by the database:
- a team has one open request per pool;
- an answered request has its time and its author, and does not change again (it is answered under its lock).
"""

from typing import ClassVar

from django.db import models
from django.db.models import Q

from backend.accounts.models import Team, User
from backend.ids import new_id
from backend.pools.models import ResourcePool


def _question_id() -> str:
    return new_id("ask")


class QuotaRequest(models.Model):
    id = models.CharField(primary_key=True, max_length=32, default=_question_id, editable=False)
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="+")
    pool = models.ForeignKey(ResourcePool, on_delete=models.CASCADE, related_name="+")
    asked_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    wanted = models.PositiveIntegerField()  # the requested total quota
    reason = models.CharField(max_length=500)
    asked_at = models.DateTimeField()
    granted = models.PositiveIntegerField(null=True)  # the granted total quota; empty: open, or refused
    answer = models.CharField(max_length=500, blank=True, default="")
    answered_at = models.DateTimeField(null=True)
    answered_by = models.CharField(max_length=64, blank=True, default="")  # as in the audit log

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["team", "pool"],
                condition=Q(answered_at__isnull=True),
                name="one_open_question_per_team_and_pool",
            ),
            models.CheckConstraint(
                condition=Q(answered_at__isnull=True, granted__isnull=True, answered_by="")
                | (Q(answered_at__isnull=False) & ~Q(answered_by="")),
                name="question_is_open_or_answered",
            ),
        ]
