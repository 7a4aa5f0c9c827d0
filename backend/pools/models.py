"""Pools of devices, quotas and budgets of teams, reservations and claims.

Invariants, held by the database too (constraints here, triggers in the migrations, checked at commit):
- the live reservations of a pool never exceed its capacity, nor a team's its nominal quota and borrow limit; what may
  not be preempted stays within the nominal quota. They are written only by the scheduler, under the pool row's lock;
- the nominal quotas of a pool never add up to more than its capacity, so each can be given back to its team;
- there is no elastic reservation without its job's trainer reservation; of a job that trains nothing, its replicas';
- use is derived from reservations, never counted beside them, so it cannot drift.
"""

from typing import ClassVar

from django.db import models
from django.db.models import F, Q

from backend.accounts.models import Team
from backend.ids import new_id


def _pool_id() -> str:
    return new_id("pool")


class ResourcePool(models.Model):
    """A pool of `capacity` devices: accelerators, or slots on a CPU pool. The row is the scheduler's mutex."""

    id = models.CharField(primary_key=True, max_length=32, default=_pool_id, editable=False)
    name = models.CharField(max_length=80, unique=True)
    flavor = models.CharField(max_length=40)
    capacity = models.PositiveIntegerField()
    device_gb = models.PositiveIntegerField(null=True, blank=True)  # memory of a device, 10^9 bytes; empty: not judged
    is_open = models.BooleanField(default=True)  # closed: what runs may end, nothing starts
    version = models.PositiveIntegerField(default=1, editable=False)  # of the quotas, for If-Match

    def __str__(self) -> str:
        return self.name


class TeamQuota(models.Model):
    pool = models.ForeignKey(ResourcePool, on_delete=models.CASCADE, related_name="quotas")
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="quotas")
    nominal = models.PositiveIntegerField()
    borrow_limit = models.PositiveIntegerField(null=True, blank=True)  # above nominal; empty: whatever is free
    lend_limit = models.PositiveIntegerField(null=True, blank=True)  # of nominal, while unused; empty: all of it
    weight = models.FloatField(default=1.0)  # a team of weight 2 has the same share while it borrows twice as much

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["pool", "team"], name="one_quota_per_pool_and_team"),
            models.CheckConstraint(condition=Q(weight__gt=0), name="quota_weight_is_positive"),
        ]


class ReservationRole(models.TextChoices):
    TRAINER = "trainer"
    ROLLOUT = "rollout"
    """The replicas without which the job does not start."""
    ELASTIC = "elastic"
    """One further replica; the first to be taken back."""


class Reservation(models.Model):
    job = models.ForeignKey("jobs.Job", on_delete=models.CASCADE, related_name="reservations")
    attempt = models.PositiveIntegerField()
    pool = models.ForeignKey(ResourcePool, on_delete=models.PROTECT, related_name="reservations")
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="reservations")
    role = models.CharField(max_length=10, choices=ReservationRole.choices)
    slot = models.PositiveIntegerField(default=0)  # tells a job's elastic replicas apart
    devices = models.PositiveIntegerField()
    borrowed = models.PositiveIntegerField(default=0)  # how many of them were above nominal when it was made
    created_at = models.DateTimeField()
    reclaimed_at = models.DateTimeField(null=True)  # elastic: when the engine was asked to give it back
    released_at = models.DateTimeField(null=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["job", "role", "slot"],
                condition=Q(released_at__isnull=True),
                name="one_live_reservation_per_slot",
            ),
            models.CheckConstraint(condition=Q(devices__gt=0), name="reservation_holds_devices"),
            models.CheckConstraint(condition=Q(borrowed__lte=F("devices")), name="reservation_borrows_what_it_holds"),
            models.CheckConstraint(condition=Q(role="elastic") | Q(slot=0), name="only_elastic_has_slots"),
            models.CheckConstraint(
                condition=Q(role="elastic") | Q(reclaimed_at__isnull=True), name="only_elastic_is_reclaimed"
            ),
            models.CheckConstraint(
                condition=Q(released_at__isnull=True) | Q(released_at__gte=F("created_at")),
                name="reservation_ends_after_it_begins",
            ),
        ]
        # What a pool and a team hold right now is summed at every scheduling decision.
        indexes: ClassVar = [
            models.Index(fields=["pool", "team"], condition=Q(released_at__isnull=True), name="live_reservations"),
            models.Index(
                fields=["released_at"], name="reservations_by_end"
            ),  # what was held since then: budget, history
        ]


class Claim(models.Model):
    """Devices that a preemption is freeing, kept for the job that it was made for."""

    job = models.OneToOneField("jobs.Job", on_delete=models.CASCADE, primary_key=True, related_name="claim")
    pool = models.ForeignKey(ResourcePool, on_delete=models.CASCADE, related_name="claims")
    devices = models.PositiveIntegerField()
    created_at = models.DateTimeField()

    class Meta:
        constraints: ClassVar = [models.CheckConstraint(condition=Q(devices__gt=0), name="claim_keeps_devices")]


class BudgetPeriod(models.TextChoices):
    MONTH = "month"


class Budget(models.Model):
    """The GPU-time of a team in a calendar month (UTC), over all pools. A team without a row has no limit."""

    team = models.OneToOneField(Team, on_delete=models.CASCADE, primary_key=True, related_name="budget")
    period = models.CharField(max_length=10, choices=BudgetPeriod.choices, default=BudgetPeriod.MONTH)
    gpu_seconds = models.PositiveBigIntegerField()
    version = models.PositiveIntegerField(default=1, editable=False)  # for If-Match


class UsageDecay(models.Model):
    """The use of a pool by a team, older use counting less: the history that fair share looks at. Not for bills."""

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="+")
    pool = models.ForeignKey(ResourcePool, on_delete=models.CASCADE, related_name="+")
    gpu_seconds = models.FloatField()
    as_of = models.DateTimeField()

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["pool", "team"], name="one_history_per_pool_and_team")]
