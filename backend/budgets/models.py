"""Monthly (UTC) spending limits of teams, projects and members, and the warnings sent.

Invariants, also enforced by the database:
- a limit is for one project, one member of the team, or the team itself, and each has at most one;
- a team's own limit is in money, and operators set it: its GPU-seconds are a `pools.Budget`;
- a warning is sent once per limit, month and level, however many processes check at once.
"""

from typing import ClassVar

from django.db import models
from django.db.models import Q

from backend.accounts.models import Project, Team, User


class Unit(models.TextChoices):
    DEVICE_SECONDS = "device_seconds"
    MONEY = "money"
    """In the site's currency, as billed."""


class SpendingLimit(models.Model):
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="+")
    project = models.OneToOneField(Project, null=True, on_delete=models.CASCADE, related_name="+")
    person = models.ForeignKey(User, null=True, on_delete=models.CASCADE, related_name="+")
    unit = models.CharField(max_length=20, choices=Unit.choices)
    amount = models.DecimalField(max_digits=24, decimal_places=6)
    version = models.PositiveIntegerField(default=1)  # for If-Match

    @property
    def is_of_team(self) -> bool:
        return self.project_id is None and self.person_id is None

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(condition=Q(project__isnull=True) | Q(person__isnull=True), name="limit_is_of_one"),
            models.CheckConstraint(
                condition=Q(project__isnull=False) | Q(person__isnull=False) | Q(unit="money"),
                name="limit_of_a_team_is_of_money",
            ),
            models.UniqueConstraint(
                fields=["team"], condition=Q(project__isnull=True, person__isnull=True), name="one_limit_per_team"
            ),
            models.UniqueConstraint(
                fields=["team", "person"], condition=Q(person__isnull=False), name="one_limit_per_team_and_person"
            ),
            models.CheckConstraint(condition=Q(amount__gte=0), name="limit_is_not_negative"),
        ]


class BudgetWarning(models.Model):
    """A warning about a limit, or, without one, about the team's GPU-seconds."""

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="+")
    limit = models.ForeignKey(SpendingLimit, null=True, on_delete=models.CASCADE, related_name="+")
    month = models.DateField()
    percent = models.PositiveSmallIntegerField()
    at = models.DateTimeField()

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["limit", "month", "percent"],
                condition=Q(limit__isnull=False),
                name="one_warning_per_limit_month_and_level",
            ),
            models.UniqueConstraint(
                fields=["team", "month", "percent"],
                condition=Q(limit__isnull=True),
                name="one_warning_per_team_month_and_level",
            ),
        ]
