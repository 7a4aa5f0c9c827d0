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
from django.db.models import F, Q, Value

from backend.accounts.models import Team
from backend.ids import new_id


def _pool_id() -> str:
    return new_id("pool")


class Device(models.TextChoices):
    """What a pool's devices are. Empty: GPUs wherever its hosts have some, as it was before anybody said."""

    GPU = "gpu"
    CPU = "cpu"


class ResourcePool(models.Model):
    """A pool of `capacity` devices: accelerators, or slots on a CPU pool. The row is the scheduler's mutex."""

    id = models.CharField(primary_key=True, max_length=32, default=_pool_id, editable=False)
    name = models.CharField(max_length=80, unique=True)
    flavor = models.CharField(max_length=40)
    capacity = models.PositiveIntegerField()
    device_gb = models.PositiveIntegerField(null=True, blank=True)  # memory of a device, 10^9 bytes; empty: not judged
    is_open = models.BooleanField(default=True)  # closed: what runs may end, nothing starts
    version = models.PositiveIntegerField(default=1, editable=False)  # of settings and quotas, for If-Match
    # Where its jobs run: the site's own Ray unless it says otherwise. Changed by `clusters.settings` and nothing else.
    ray_url = models.CharField(max_length=300, blank=True, default="", db_default="")
    ray_token = models.CharField(max_length=64, blank=True, default="", db_default="")  # name of a file, no token
    labels = models.JSONField(blank=True, default=dict, db_default=Value({}, models.JSONField()))  # of hosts, by Ray
    device = models.CharField(max_length=3, choices=Device.choices, blank=True, default="", db_default="")
    autoscales = models.BooleanField(default=False, db_default=False)  # fewer devices than `capacity` are no gap

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(condition=Q(device__in=["", *Device.values]), name="pool_device_known"),
            models.CheckConstraint(condition=Q(ray_token="") | ~Q(ray_url=""), name="pool_token_has_address"),
        ]

    def __str__(self) -> str:
        return self.name


class RayLook(models.Model):
    """What a pool's Ray was last seen to have. Written by the look alone; it changes nothing that runs."""

    pool = models.OneToOneField(ResourcePool, on_delete=models.CASCADE, primary_key=True, related_name="look")
    at = models.DateTimeField()
    problem = models.CharField(max_length=300, blank=True, default="")  # it did not answer; the rest is of before
    seen_at = models.DateTimeField(null=True)  # when it answered last
    hosts = models.JSONField(default=list)  # of the pool: name, labels, cpus, gpus
    devices = models.PositiveIntegerField(null=True)  # of theirs, as the pool counts them
    promised = models.PositiveIntegerField(null=True)  # of these, to this pool and to others on the same hosts
    amiss_since = models.DateTimeField(null=True)  # fewer devices than promised, or no answer

    @property
    def missing(self) -> int:
        return max(0, (self.promised or 0) - (self.devices or 0)) if self.seen_at else 0


def _maintenance_id() -> str:
    return new_id("mnt")


class Maintenance(models.Model):
    """Announced to everybody. Over at `ends_at` by itself, or at `ended_at` by an operator."""

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
    """A host of a Ray that is being taken out: nothing new is placed on it. What it had is kept for when it is away."""

    ray_url = models.CharField(max_length=300, blank=True, default="")  # as of pools; empty: the site's own
    name = models.CharField(max_length=255)  # its ids change whenever Ray begins again there
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
