"""The use of a reservation, settled once it is over: a row for each of its days (UTC), in device-microseconds.

Invariants, held by the database too:
- the kinds add up to `held_us`, which is devices x microseconds of the reservation on that day, to the microsecond;
- a row is written once and never changed; what is credited back is a part of the fault time.
"""

from typing import ClassVar

from django.db import models
from django.db.models import F, Q

from backend.accounts.models import Project, Team, User
from backend.jobs.models import Job
from backend.pools.models import Reservation


class UsageSlice(models.Model):
    """A day of a reservation. Its owners stand in the row, so that a month of 10,000 jobs is one scan of one table."""

    reservation = models.ForeignKey(Reservation, on_delete=models.CASCADE, related_name="usage")
    day = models.DateField()
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="+", db_index=False)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="+", db_index=False)
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+", db_index=False)
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="usage")
    key = models.CharField(max_length=32, blank=True, default="")  # the id of the API key that submitted it, or empty
    held_us = models.PositiveBigIntegerField()
    startup_us = models.PositiveBigIntegerField(default=0)
    useful_us = models.PositiveBigIntegerField(default=0)
    stale_us = models.PositiveBigIntegerField(default=0)
    fault_us = models.PositiveBigIntegerField(default=0)
    idle_us = models.PositiveBigIntegerField(default=0)
    credited_us = models.PositiveBigIntegerField(default=0)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["reservation", "day"], name="one_slice_per_reservation_and_day"),
            models.CheckConstraint(
                condition=Q(held_us=F("startup_us") + F("useful_us") + F("stale_us") + F("fault_us") + F("idle_us")),
                name="usage_kinds_add_up",
            ),
            models.CheckConstraint(condition=Q(credited_us__lte=F("fault_us")), name="usage_credits_faults_only"),
        ]
        # Reports read a team's range of days and sum over it.
        indexes: ClassVar = [models.Index(fields=["team", "day"], name="usage_of_team")]
