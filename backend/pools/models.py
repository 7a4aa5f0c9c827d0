"""Pools of devices, quotas and budgets of teams, reservations and claims.

Invariants, also enforced by the database (constraints here, triggers in the migrations, checked at commit):
- live reservations never exceed the pool's capacity, nor a team's its nominal quota plus borrow limit; those of jobs
  that are not preemptible stay within the nominal quota. Only the scheduler writes them, under the pool row's lock;
- the nominal quotas of a pool never exceed its capacity together, so each can be returned to its team;
- an elastic reservation needs its job's trainer reservation; for a job that trains nothing, that of its replicas;
- use is derived from reservations, never counted separately, so it cannot drift.
"""

from typing import ClassVar

from django.db import models
from django.db.models import F, Q, Value

from backend.accounts.models import Team
from backend.ids import new_id


def _pool_id() -> str:
    return new_id("pool")


class Device(models.TextChoices):
    """A pool's type of device. Empty: GPUs if its hosts have some."""

    GPU = "gpu"
    CPU = "cpu"


class ResourcePool(models.Model):
    """A pool of `capacity` devices: accelerators, or slots on a CPU pool. The row is the scheduler's mutex."""

    id = models.CharField(primary_key=True, max_length=32, default=_pool_id, editable=False)
    name = models.CharField(max_length=80, unique=True)
    flavor = models.CharField(max_length=40)
    capacity = models.PositiveIntegerField()
    device_gb = models.PositiveIntegerField(null=True, blank=True)  # memory of a device, 10^9 bytes; empty: not checked
    is_open = models.BooleanField(default=True)  # closed: running jobs may end, none starts
    version = models.PositiveIntegerField(default=1, editable=False)  # of settings and quotas, for If-Match
    # The Ray that runs its jobs; empty: the site's. Only `clusters.settings` changes these fields.
    ray_url = models.CharField(max_length=300, blank=True, default="", db_default="")
    ray_token = models.CharField(max_length=64, blank=True, default="", db_default="")  # name of a file, not the token
    labels = models.JSONField(blank=True, default=dict, db_default=Value({}, models.JSONField()))  # of hosts, by Ray
    device = models.CharField(max_length=3, choices=Device.choices, blank=True, default="", db_default="")
    autoscales = models.BooleanField(default=False, db_default=False)  # fewer devices than `capacity` are normal

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(condition=Q(device__in=["", *Device.values]), name="pool_device_known"),
            models.CheckConstraint(condition=Q(ray_token="") | ~Q(ray_url=""), name="pool_token_has_address"),
        ]

    def __str__(self) -> str:
        return self.name


class ClusterProbe(models.Model):
    """The devices that a pool's Ray was last seen to have. Written by probes only; affects no running job."""

    pool = models.OneToOneField(ResourcePool, on_delete=models.CASCADE, primary_key=True, related_name="probe")
    at = models.DateTimeField()
    problem = models.CharField(max_length=300, blank=True, default="")  # why it did not answer; the rest is older
    seen_at = models.DateTimeField(null=True)  # when it last answered
    hosts = models.JSONField(default=list)  # of the pool: name, labels, cpus, gpus
    devices = models.PositiveIntegerField(null=True)  # of these hosts, in the pool's unit
    promised = models.PositiveIntegerField(null=True)  # to this pool and to others on the same hosts
    failing_since = models.DateTimeField(null=True)  # fewer devices than promised, or no answer

    @property
    def missing(self) -> int:
        return max(0, (self.promised or 0) - (self.devices or 0)) if self.seen_at else 0


def _maintenance_id() -> str:
    return new_id("mnt")


class Maintenance(models.Model):
    """Announced to all users. Ends at `ends_at` by itself, or at `ended_at` by an operator."""

    id = models.CharField(primary_key=True, max_length=32, default=_maintenance_id, editable=False)
    text = models.CharField(max_length=300)
    begins_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    stops_from = models.DateTimeField(null=True)  # nothing starts from then until the end
    created_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    version = models.PositiveIntegerField(default=1)  # for If-Match

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(condition=Q(ends_at__gt=F("begins_at")), name="maintenance_ends_after_it_begins"),
        ]


class DrainedHost(models.Model):
    """A drained host of a Ray: nothing new is placed on it. Its resources are kept for when it is away."""

    ray_url = models.CharField(max_length=300, blank=True, default="")  # as of pools; empty: the site's own
    name = models.CharField(max_length=255)  # its ids change whenever Ray restarts there
    at = models.DateTimeField()
    by = models.CharField(max_length=64)  # as in the audit log
    reason = models.CharField(max_length=200, blank=True, default="")
    labels = models.JSONField(default=dict)
    cpus = models.FloatField()
    gpus = models.FloatField()

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["ray_url", "name"], name="host_is_drained_once")]


class TeamQuota(models.Model):
    pool = models.ForeignKey(ResourcePool, on_delete=models.CASCADE, related_name="quotas")
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="quotas")
    nominal = models.PositiveIntegerField()
    borrow_limit = models.PositiveIntegerField(null=True, blank=True)  # above nominal; empty: no limit
    lend_limit = models.PositiveIntegerField(null=True, blank=True)  # of nominal, while unused; empty: all of it
    weight = models.FloatField(default=1.0)  # a team of weight 2 may borrow twice as much for the same share

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["pool", "team"], name="one_quota_per_pool_and_team"),
            models.CheckConstraint(condition=Q(weight__gt=0), name="quota_weight_is_positive"),
        ]


class ReservationRole(models.TextChoices):
    TRAINER = "trainer"
    ROLLOUT = "rollout"
    """The replicas required for the job's start."""
    ELASTIC = "elastic"
    """One further replica; the first to be reclaimed."""


class Reservation(models.Model):
    job = models.ForeignKey("jobs.Job", on_delete=models.CASCADE, related_name="reservations")
    attempt = models.PositiveIntegerField()
    pool = models.ForeignKey(ResourcePool, on_delete=models.PROTECT, related_name="reservations")
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="reservations")
    role = models.CharField(max_length=10, choices=ReservationRole.choices)
    slot = models.PositiveIntegerField(default=0)  # distinguishes a job's elastic replicas
    devices = models.PositiveIntegerField()
    borrowed = models.PositiveIntegerField(default=0)  # devices above nominal when it was created
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
        # Every scheduling decision sums what a pool and a team hold right now.
        indexes: ClassVar = [
            models.Index(fields=["pool", "team"], condition=Q(released_at__isnull=True), name="live_reservations"),
            models.Index(
                fields=["released_at"], name="reservations_by_end"
            ),  # devices held since then: budget, history
        ]


class Claim(models.Model):
    """Devices that a preemption frees, held for the job it serves."""

    job = models.OneToOneField("jobs.Job", on_delete=models.CASCADE, primary_key=True, related_name="claim")
    pool = models.ForeignKey(ResourcePool, on_delete=models.CASCADE, related_name="claims")
    devices = models.PositiveIntegerField()
    created_at = models.DateTimeField()

    class Meta:
        constraints: ClassVar = [models.CheckConstraint(condition=Q(devices__gt=0), name="claim_keeps_devices")]


class BudgetPeriod(models.TextChoices):
    MONTH = "month"


class Budget(models.Model):
    """A team's GPU-time per calendar month (UTC), over all pools. A team without a row has no limit."""

    team = models.OneToOneField(Team, on_delete=models.CASCADE, primary_key=True, related_name="budget")
    period = models.CharField(max_length=10, choices=BudgetPeriod.choices, default=BudgetPeriod.MONTH)
    gpu_seconds = models.PositiveBigIntegerField()
    version = models.PositiveIntegerField(default=1, editable=False)  # for If-Match


class UsageDecay(models.Model):
    """A team's decayed use of a pool: the history for fair share. Not for bills."""

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="+")
    pool = models.ForeignKey(ResourcePool, on_delete=models.CASCADE, related_name="+")
    gpu_seconds = models.FloatField()
    as_of = models.DateTimeField()

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["pool", "team"], name="one_history_per_pool_and_team")]
