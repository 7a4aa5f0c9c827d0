"""Capacity and who may use how much of it.

Invariants:
- the sum of a pool's live reservations never exceeds its capacity, a team's never its quota: reservations are
  written only by the scheduler, under the pool row's lock;
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
    """`capacity` counts devices: accelerators, or slots on a CPU pool. The row is the scheduler's mutex."""

    id = models.CharField(primary_key=True, max_length=32, default=_pool_id, editable=False)
    name = models.CharField(max_length=80, unique=True)
    flavor = models.CharField(max_length=40)
    capacity = models.PositiveIntegerField()

    def __str__(self) -> str:
        return self.name


class TeamQuota(models.Model):
    pool = models.ForeignKey(ResourcePool, on_delete=models.CASCADE, related_name="quotas")
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="quotas")
    nominal = models.PositiveIntegerField()

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["pool", "team"], name="one_quota_per_pool_and_team")]


class ReservationRole(models.TextChoices):
    TRAINER = "trainer"
    ROLLOUT = "rollout"


class Reservation(models.Model):
    job = models.ForeignKey("jobs.Job", on_delete=models.CASCADE, related_name="reservations")
    attempt = models.PositiveIntegerField()
    pool = models.ForeignKey(ResourcePool, on_delete=models.PROTECT, related_name="reservations")
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="reservations")
    role = models.CharField(max_length=10, choices=ReservationRole.choices)
    devices = models.PositiveIntegerField()
    created_at = models.DateTimeField()
    released_at = models.DateTimeField(null=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["job", "role"], condition=Q(released_at__isnull=True), name="one_live_reservation_per_role"
            ),
            models.CheckConstraint(condition=Q(devices__gt=0), name="reservation_holds_devices"),
            models.CheckConstraint(
                condition=Q(released_at__isnull=True) | Q(released_at__gte=F("created_at")),
                name="reservation_ends_after_it_begins",
            ),
        ]
        # What a pool and a team hold right now is summed at every scheduling decision.
        indexes: ClassVar = [
            models.Index(fields=["pool", "team"], condition=Q(released_at__isnull=True), name="live_reservations")
        ]
