"""Jobs, their attempts, and the log of all events of each.

Invariants, held by the database too (constraints here, triggers in the migrations):
- a spec never changes, a terminal state never changes, an event is never changed or deleted;
- a job has at most one attempt that has not ended;
- every change of state is made by `lifecycle.change_state` and leaves exactly one event;
- a job holds devices (a live reservation of its trainer's; of an evaluation, which has none, of its replicas') if and
  only if its state is one of HOLDING_STATES.
"""

from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from backend.accounts.models import Project, Team, User
from backend.borders.tenant_text import TenantTextField
from backend.ids import new_id
from backend.pools.models import ResourcePool


def _job_id() -> str:
    return new_id("job")


class JobState(models.TextChoices):
    VALIDATING = "validating"
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    RECOVERING = "recovering"
    PAUSING = "pausing"
    PAUSED = "paused"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


TERMINAL_STATES = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)
HOLDING_STATES = (JobState.STARTING, JobState.RUNNING, JobState.RECOVERING, JobState.PAUSING, JobState.STOPPING)
WAITING_STATES = (JobState.VALIDATING, JobState.QUEUED, JobState.PAUSED)


class Job(models.Model):
    id = models.CharField(primary_key=True, max_length=32, default=_job_id, editable=False)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="jobs")
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="jobs")
    pool = models.ForeignKey(ResourcePool, on_delete=models.PROTECT, related_name="jobs")
    created_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="jobs")
    name = models.CharField(max_length=120)
    tags = ArrayField(models.CharField(max_length=40), default=list)
    spec = models.JSONField()
    devices = models.PositiveIntegerField()
    steps = models.PositiveIntegerField()

    state = models.CharField(max_length=12, choices=JobState.choices, default=JobState.QUEUED)
    phase = models.CharField(max_length=30, blank=True, default="")
    reason = models.CharField(max_length=60, blank=True, default="")
    message = TenantTextField(blank=True, default="")
    target_state = models.CharField(max_length=12, blank=True, default="")  # where pausing and stopping end
    failure_class = models.CharField(max_length=20, blank=True, default="")

    parent = models.ForeignKey("self", on_delete=models.SET_NULL, null=True, related_name="retries")
    start_from = models.CharField(max_length=32, blank=True, default="")  # id of the checkpoint to resume from
    priority = models.SmallIntegerField(default=0)
    preemptible = models.BooleanField(default=False)
    min_devices = models.PositiveIntegerField()  # must be free at once; the rest is elastic
    max_runtime_s = models.PositiveIntegerField()
    evaluated_at = models.DateTimeField(null=True)  # last evaluation by the scheduler
    not_before = models.DateTimeField(null=True)  # after a failed start: wait until then

    version = models.PositiveIntegerField(default=1)  # of the row, compared in every compare-and-set
    fence = models.PositiveIntegerField(default=0)  # engine writes with an older one have no effect
    num_attempts = models.PositiveIntegerField(default=0)
    num_validations = models.PositiveSmallIntegerField(default=0)  # started; detects a spec that crashes its validator
    step = models.PositiveIntegerField(default=0)
    answered = models.PositiveIntegerField(default=0)  # prompts of an evaluation, by the current or last attempt
    stalled_since = models.DateTimeField(null=True)  # its driver's loop is stuck, or its driver is silent
    cursor = models.PositiveBigIntegerField(default=0)  # counts all news of the job: events, metrics, samples

    created_at = models.DateTimeField()
    queued_at = models.DateTimeField(null=True)
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(condition=Q(state__in=JobState.values), name="job_state_known"),
            models.CheckConstraint(
                condition=Q(state__in=TERMINAL_STATES, finished_at__isnull=False)
                | (~Q(state__in=TERMINAL_STATES) & Q(finished_at__isnull=True)),
                name="job_finished_iff_terminal",
            ),
        ]
        indexes: ClassVar = [
            models.Index(fields=["team", "-created_at", "-id"], name="job_list"),
            models.Index(fields=["pool", "queued_at"], condition=Q(state="queued"), name="job_queue"),
        ]

    def __str__(self) -> str:
        return f"{self.id} {self.name}"

    @property
    def is_terminal(self) -> bool:
        return self.state in TERMINAL_STATES

    @property
    def only_evaluates(self) -> bool:
        return not self.steps

    @property
    def num_done(self) -> int:
        """Progress towards `num_to_do`: steps, or the held-out prompts of an evaluation."""
        return self.answered if self.only_evaluates else self.step

    @property
    def num_to_do(self) -> int:
        return int(self.spec["evaluation"]["prompts"]) if self.only_evaluates else self.steps


class JobAttempt(models.Model):
    """One execution on the engine. `acked_seq` is the last fact stored: it makes ingest exactly-once."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="attempts")
    n = models.PositiveIntegerField()
    fence = models.PositiveIntegerField()
    submission_id = models.CharField(max_length=80, unique=True)
    token_sha256 = models.CharField(max_length=64, unique=True)  # looked up for each request of the driver
    resume_from = models.CharField(max_length=2_000, blank=True, default="")
    resume_step = models.PositiveIntegerField(default=0)  # the step that it resumes after
    acked_seq = models.PositiveBigIntegerField(default=0)
    created_at = models.DateTimeField()
    submitted_at = models.DateTimeField(null=True)
    last_seen_at = models.DateTimeField(null=True)  # last request of the driver, or last time Ray reported it running
    turns = models.PositiveBigIntegerField(null=True)  # iterations of the driver's loop, by the newest heartbeat
    moved_at = models.DateTimeField(null=True)  # the first heartbeat with this number of turns
    ended_at = models.DateTimeField(null=True)
    outcome = models.CharField(max_length=30, blank=True, default="")
    message = TenantTextField(blank=True, default="")
    failure_class = models.CharField(max_length=20, blank=True, default="")
    evidence = models.JSONField(default=dict)  # `evidence.Evidence` of its failure

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["job", "n"], name="one_attempt_per_number"),
            models.UniqueConstraint(fields=["job"], condition=Q(ended_at__isnull=True), name="one_live_attempt"),
        ]


class JobEvent(models.Model):
    """An entry of a job's append-only log. It serves the page's timeline, GET /events and webhooks."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="events")
    seq = models.PositiveIntegerField()
    cursor = models.PositiveBigIntegerField()
    at = models.DateTimeField()
    type = models.CharField(max_length=40)
    actor = models.CharField(max_length=80)  # "user:<id>", "key:<id>", "scheduler", "engine:<attempt>", "reconcile"
    from_state = models.CharField(max_length=12, blank=True, default="")
    to_state = models.CharField(max_length=12, blank=True, default="")
    job_version = models.PositiveIntegerField(null=True)  # for a change of state: the row version that it wrote
    reason = models.CharField(max_length=60, blank=True, default="")
    message = TenantTextField(blank=True, default="")
    data = models.JSONField(default=dict)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["job", "seq"], name="one_event_per_seq"),
            models.UniqueConstraint(fields=["job", "job_version"], name="one_event_per_change_of_state"),
        ]
        indexes: ClassVar = [models.Index(fields=["job", "cursor"], name="event_pull")]


class ControlRequest(models.Model):
    """A request to a running attempt; its driver fetches it with a heartbeat and acknowledges it by a fact."""

    id = models.CharField(primary_key=True, max_length=32)
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="requests")
    kind = models.CharField(max_length=20)
    replicas = models.PositiveIntegerField(null=True)  # the new number, for `resize`
    created_at = models.DateTimeField()
    acknowledged_at = models.DateTimeField(null=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["job", "kind"], condition=Q(acknowledged_at__isnull=True), name="one_open_request_per_kind"
            ),
            models.CheckConstraint(
                condition=Q(kind__in=["cancel", "pause"], replicas__isnull=True)
                | Q(kind="resize", replicas__isnull=False, replicas__gte=1),
                name="request_can_be_obeyed",
            ),
        ]


class OutboxMessage(models.Model):
    """A message written in the transaction of its cause, sent later by the worker that claims it (SKIP LOCKED)."""

    topic = models.CharField(max_length=40)
    key = models.CharField(max_length=64)
    created_at = models.DateTimeField()
    attempts = models.PositiveIntegerField(default=0)
    not_before = models.DateTimeField()

    class Meta:
        indexes: ClassVar = [models.Index(fields=["not_before"], name="outbox_due")]


class ReconcileLease(models.Model):
    """The right to reconcile. `expires_at` is compared with Postgres' clock only; each write checks `fence` first."""

    name = models.CharField(primary_key=True, max_length=40)
    owner = models.CharField(max_length=64)
    fence = models.PositiveBigIntegerField()
    expires_at = models.DateTimeField()
    listening_since = models.DateTimeField(null=True)  # without a break until `listened_at`
    listened_at = models.DateTimeField(null=True)


class Generation(models.Model):
    """A single row that counts restores of this database, with the means to detect them."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    site = models.CharField(max_length=32)  # id of this installation, part of its submission ids
    number = models.PositiveIntegerField(default=0)  # 0: never restored; otherwise the time, in seconds since 2026
    pulse = models.PositiveBigIntegerField(default=0)  # a counter, with a copy outside the database
    cluster = models.CharField(max_length=100, blank=True, default="")  # the Postgres server, timeline and database
    raised_at = models.DateTimeField(null=True)
    reason = models.CharField(max_length=200, blank=True, default="")

    class Meta:
        constraints: ClassVar = [models.CheckConstraint(condition=Q(id=1), name="one_generation")]
