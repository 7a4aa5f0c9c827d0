"""Checkpoints of jobs, their retention rules and evaluations, and the registry of models made from them.

    verifying ──▶ complete ──▶ deleting ──▶ deleted
        └───────▶ corrupt ─────────▲

Invariants:
- `complete` means that the control plane read the manifest back and verified every part;
- a row is marked `deleting` before its files are touched and `deleted` after the last is gone, so a crash in between
  leaves a deletion to repeat, never an incomplete checkpoint that looks complete;
- a pinned checkpoint is never being deleted (also a database constraint), and a promoted one stays pinned;
- the origin of a model's version never changes: it is copied into the version. A version number is never reused, even
  if the version or the whole model was removed.
"""

from typing import ClassVar, Self

from django.db import models
from django.db.models import Q

from backend.accounts.models import Team
from backend.borders.tenant_text import TenantTextField
from backend.ids import new_id
from backend.jobs.models import Job


def _checkpoint_id() -> str:
    return new_id("ckpt")


def _model_id() -> str:
    return new_id("model")


class CheckpointState(models.TextChoices):
    VERIFYING = "verifying"
    COMPLETE = "complete"
    CORRUPT = "corrupt"
    DELETING = "deleting"
    DELETED = "deleted"


GONE = (CheckpointState.DELETING, CheckpointState.DELETED)


class CheckpointRows(models.QuerySet["Checkpoint"]):
    def usable(self) -> Self:
        """Checkpoints that an attempt may resume from, newest first: a later attempt resumed from an earlier one, so
        its own are newer whatever their step. One under verification counts, since the engine verified it before; one
        that an attempt could not open counts only once it was verified again."""
        whole = Q(state=CheckpointState.COMPLETE) | Q(state=CheckpointState.VERIFYING, is_doubted=False)
        return self.filter(whole).order_by("-attempt", "-step")


class Checkpoint(models.Model):
    id = models.CharField(primary_key=True, max_length=32, default=_checkpoint_id, editable=False)
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="checkpoints")
    attempt = models.PositiveIntegerField()
    step = models.PositiveBigIntegerField()
    version = models.PositiveBigIntegerField()
    uri = models.CharField(max_length=2_000)
    manifest_sha256 = models.CharField(max_length=64)
    num_bytes = models.PositiveBigIntegerField()
    created_at = models.DateTimeField()

    state = models.CharField(max_length=10, choices=CheckpointState.choices, default=CheckpointState.VERIFYING)
    message = TenantTextField(blank=True, default="")  # why it is corrupt or cannot be read
    parts = models.JSONField(default=dict)  # name: {num_bytes, sha256}, as the verified manifest has them
    num_parts_checked = models.PositiveIntegerField(default=0)
    is_hashed = models.BooleanField(default=True)  # false: some part was too large to be read; its size was checked
    next_check_at = models.DateTimeField(null=True)  # of its state's next work; also the worker's claim
    verified_at = models.DateTimeField(null=True)
    deleted_at = models.DateTimeField(null=True)
    is_doubted = models.BooleanField(default=False)  # an attempt could not open it
    pinned = models.BooleanField(default=False)
    expires_at = models.DateTimeField(null=True)
    metrics = models.JSONField(default=dict)  # name: value at this step
    code_version = models.CharField(max_length=80, blank=True, default="")  # of the engine that wrote it

    objects: ClassVar[CheckpointRows] = CheckpointRows.as_manager()  # type: ignore[assignment]

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["job", "attempt", "step"], name="one_checkpoint_per_step"),
            models.CheckConstraint(condition=Q(state__in=CheckpointState.values), name="checkpoint_state_known"),
            models.CheckConstraint(condition=Q(pinned=False) | ~Q(state__in=GONE), name="pinned_checkpoints_stay"),
            models.CheckConstraint(
                condition=Q(state="deleted", deleted_at__isnull=False)
                | (~Q(state="deleted") & Q(deleted_at__isnull=True)),
                name="checkpoint_deleted_iff_dated",
            ),
        ]
        # Work of beat's ticks.
        indexes: ClassVar = [
            models.Index(
                fields=["state", "next_check_at"], condition=Q(next_check_at__isnull=False), name="checkpoint_due"
            )
        ]

    def __str__(self) -> str:
        return f"{self.id} step {self.step}"


class Retention(models.Model):
    """The retention rule of a job's checkpoints. A job without a row has these defaults."""

    job = models.OneToOneField(Job, on_delete=models.CASCADE, primary_key=True, related_name="retention")
    keep_last = models.PositiveIntegerField(default=5)
    keep_best = models.PositiveIntegerField(default=1)
    metric = models.CharField(max_length=100, default="reward/mean")  # the highest is the best
    ttl_s = models.PositiveBigIntegerField(null=True)  # from the checkpoint's creation; keep_last applies regardless

    class Meta:
        constraints: ClassVar = [models.CheckConstraint(condition=Q(keep_last__gte=1), name="the_last_one_is_kept")]


class CheckpointEvaluation(models.Model):
    """The result of a job that only evaluates a checkpoint, from its last attempt."""

    job = models.OneToOneField(Job, on_delete=models.CASCADE, primary_key=True, related_name="evaluation")
    checkpoint = models.ForeignKey(Checkpoint, on_delete=models.CASCADE, related_name="evaluations")
    at = models.DateTimeField()
    environment = models.CharField(max_length=40)
    num_prompts = models.PositiveIntegerField()  # answered and graded
    num_samples = models.PositiveIntegerField(db_default=1)  # k: samples per prompt
    reward_mean = models.FloatField()  # avg@k
    reward_std = models.FloatField()
    reward_error = models.FloatField(db_default=0.0)  # standard error of reward_mean, over prompts
    pass_rate = models.FloatField(null=True)  # pass@k; null: not reported
    pass_error = models.FloatField(db_default=0.0)
    length_mean = models.FloatField()

    class Meta:
        ordering: ClassVar = ["-at", "-job"]


class RegisteredModel(models.Model):
    """A name with its versions. A removed model keeps its row, and so its count of versions."""

    id = models.CharField(primary_key=True, max_length=32, default=_model_id, editable=False)
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="models")
    name = models.CharField(max_length=100)
    created_at = models.DateTimeField()
    removed_at = models.DateTimeField(null=True)
    last_number = models.PositiveIntegerField(default=0)  # the highest number ever assigned
    revision = models.PositiveIntegerField(default=1)  # for If-Match: grows with every version added or removed

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["team", "name"], name="one_model_per_name")]

    def __str__(self) -> str:
        return self.name


class ModelVersion(models.Model):
    """A model's version and its origin, copied so that it survives changes of the job."""

    model = models.ForeignKey(RegisteredModel, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    checkpoint = models.ForeignKey(Checkpoint, on_delete=models.PROTECT, related_name="promotions")
    note = models.TextField(blank=True, default="")
    created_at = models.DateTimeField()
    created_by = models.CharField(max_length=80)  # an actor: "key:…", "user:…"
    lineage = models.JSONField()
    revision = models.PositiveIntegerField(default=1)  # for If-Match: of the note

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["model", "number"], name="one_version_per_number"),
            models.UniqueConstraint(fields=["model", "checkpoint"], name="one_version_per_checkpoint"),
        ]
