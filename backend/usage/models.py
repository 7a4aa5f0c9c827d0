"""The use of a reservation, settled after its end: one row per day (UTC), in device-microseconds, with its cost; and
the prices behind it.

Invariants, held by the database too:
- the kinds add up to `held_us`, which is devices x microseconds of the reservation on that day, to the microsecond;
- a row is written once; only what is credited changes, by an operator's credit. Credits are part of the fault time and
  of the cost;
- an attempt has at most one credit of an operator that was not taken back;
- a price begins at its creation or later and never changes, so bills never change; a future price may be withdrawn.
"""

from typing import ClassVar

from django.db import models
from django.db.models import F, Q

from backend.accounts.models import Project, Team, User
from backend.jobs.models import Job, JobAttempt
from backend.pools.models import Reservation, ResourcePool
from backend.usage.pricing.money import DIGITS, PLACES, PRICE_DIGITS, PRICE_PLACES


class UsageSlice(models.Model):
    """One day of a reservation. The row repeats its owners, so that a month of 10,000 jobs is one scan of one table."""

    reservation = models.ForeignKey(Reservation, on_delete=models.CASCADE, related_name="usage")
    day = models.DateField()
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="+", db_index=False)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="+", db_index=False)
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+", db_index=False)
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="usage")
    key = models.CharField(max_length=32, blank=True, default="")  # id of the submitting API key, or empty
    held_us = models.PositiveBigIntegerField()
    startup_us = models.PositiveBigIntegerField(default=0)
    useful_us = models.PositiveBigIntegerField(default=0)
    stale_us = models.PositiveBigIntegerField(default=0)
    fault_us = models.PositiveBigIntegerField(default=0)
    idle_us = models.PositiveBigIntegerField(default=0)
    credited_us = models.PositiveBigIntegerField(default=0)
    cost = models.DecimalField(max_digits=DIGITS, decimal_places=PLACES, default=0, db_default=0)  # of everything held
    cost_credited = models.DecimalField(max_digits=DIGITS, decimal_places=PLACES, default=0, db_default=0)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["reservation", "day"], name="one_slice_per_reservation_and_day"),
            models.CheckConstraint(
                condition=Q(held_us=F("startup_us") + F("useful_us") + F("stale_us") + F("fault_us") + F("idle_us")),
                name="usage_kinds_add_up",
            ),
            models.CheckConstraint(condition=Q(credited_us__lte=F("fault_us")), name="usage_credits_faults_only"),
            models.CheckConstraint(
                condition=Q(cost_credited__gte=0, cost_credited__lte=F("cost")), name="usage_gives_back_what_it_cost"
            ),
        ]
        # Reports read a team's range of days and sum over it.
        indexes: ClassVar = [models.Index(fields=["team", "day"], name="usage_of_team")]


class AttemptCredit(models.Model):
    """The fault time of an attempt, credited by an operator."""

    attempt = models.ForeignKey(JobAttempt, on_delete=models.CASCADE, related_name="credits")
    reason = models.CharField(max_length=300)  # the team reads it
    given_at = models.DateTimeField()
    given_by = models.CharField(max_length=64)  # as in the audit log
    taken_back_at = models.DateTimeField(null=True)
    taken_back_by = models.CharField(max_length=64, blank=True, default="")

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["attempt"], condition=Q(taken_back_at__isnull=True), name="one_credit_per_attempt"
            ),
            models.CheckConstraint(
                condition=Q(taken_back_at__isnull=True, taken_back_by="")
                | (Q(taken_back_at__isnull=False) & ~Q(taken_back_by="")),
                name="credit_taken_back_by_someone",
            ),
        ]


class CreditedSlice(models.Model):
    """The part of a settled slice that a credit made. It stays when the credit is taken back."""

    credit = models.ForeignKey(AttemptCredit, on_delete=models.CASCADE, related_name="slices")
    slice = models.ForeignKey(UsageSlice, on_delete=models.CASCADE, related_name="+")
    credited_us = models.PositiveBigIntegerField()
    cost_credited = models.DecimalField(max_digits=DIGITS, decimal_places=PLACES)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["credit", "slice"], name="one_part_per_credit_and_slice"),
        ]


class PoolPrice(models.Model):
    """The price of a device-second of a pool from a moment on, until the pool's next price begins. A pool is free
    before its first price."""

    pool = models.ForeignKey(ResourcePool, on_delete=models.PROTECT, related_name="+")
    per_device_second = models.DecimalField(max_digits=PRICE_DIGITS, decimal_places=PRICE_PLACES)
    valid_from = models.DateTimeField()
    created_at = models.DateTimeField()
    created_by = models.CharField(max_length=64)  # as in the audit log

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["pool", "valid_from"], name="one_price_per_pool_and_moment"),
            models.CheckConstraint(condition=Q(per_device_second__gte=0), name="price_is_not_negative"),
            models.CheckConstraint(
                condition=Q(valid_from__gte=F("created_at")), name="price_begins_when_made_or_later"
            ),
        ]


class SiteCurrency(models.Model):
    """The currency of all prices and bills: one row, created with the first price, never changed."""

    id = models.SmallIntegerField(primary_key=True, default=1, editable=False)
    code = models.CharField(max_length=3)  # ISO 4217

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(condition=Q(id=1), name="a_site_has_one_currency"),
            models.CheckConstraint(condition=Q(code__regex=r"^[A-Z]{3}$"), name="currency_is_iso_4217"),
        ]
