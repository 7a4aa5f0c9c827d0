"""Checkpoints of jobs, the rules by which they are kept, their evaluations, and the registry of models made of them.

    verifying ──▶ complete ──▶ deleting ──▶ deleted
        └───────▶ corrupt ─────────▲

Invariants:
- `complete` means that this side read the manifest back and found every part to be what it says;
- a row is marked `deleting` before its files are touched and `deleted` after the last is gone, so a crash in between
  leaves a deletion that is done again, never a checkpoint that looks whole and is not;
- a pinned checkpoint is never on its way out (held by the database too), and a promoted one stays pinned;
- where a version of a registered model came from never changes: it is copied into it. Its number is never given to
  another, not even when it, or the whole model, was removed.
"""

from typing import ClassVar, Self

from django.db import models
from django.db.models import Q

from backend.accounts.models import Team
from backend.borders.told import ToldField
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
        """Those that an attempt may go on from, newest first: a later attempt went on from an earlier one's, so its own
        are newer whatever their step. One that is still being read back here counts, since the engine has read it
        back before it told of it; one that an attempt could not open does not, until it was read again."""
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
    message = ToldField(blank=True, default="")  # why it is corrupt, or cannot be read from here
    parts = models.JSONField(default=dict)  # name: {num_bytes, sha256}, as the verified manifest has them
    num_parts_checked = models.PositiveIntegerField(default=0)
    is_hashed = models.BooleanField(default=True)  # false: some part was too large to be read; its size was checked
    next_check_at = models.DateTimeField(null=True)  # of whatever its state asks for; also the claim of who is at it
    verified_at = models.DateTimeField(null=True)
    deleted_at = models.DateTimeField(null=True)
    is_doubted = models.BooleanField(default=False)  # an attempt could not open it
    pinned = models.BooleanField(default=False)
    expires_at = models.DateTimeField(null=True)
    metrics = models.JSONField(default=dict)  # name: value at this step
    code_version = models.CharField(max_length=80, blank=True, default="")  # of the engine that made it

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
        # What the beat's tick still has to do.
        indexes: ClassVar = [
            models.Index(
                fields=["state", "next_check_at"], condition=Q(next_check_at__isnull=False), name="checkpoint_due"
            )
        ]

    def __str__(self) -> str:
        return f"{self.id} step {self.step}"


class Retention(models.Model):
    """A rule for the checkpoints of a job that are kept. A job without a row has these defaults."""

    job = models.OneToOneField(Job, on_delete=models.CASCADE, primary_key=True, related_name="retention")
    keep_last = models.PositiveIntegerField(default=5)
    keep_best = models.PositiveIntegerField(default=1)
    metric = models.CharField(max_length=100, default="reward/mean")  # the highest is the best
    ttl_s = models.PositiveBigIntegerField(null=True)  # from the checkpoint's making; the last ones stay all the same

    class Meta:
        constraints: ClassVar = [models.CheckConstraint(condition=Q(keep_last__gte=1), name="the_last_one_is_kept")]


class CheckpointEvaluation(models.Model):
    """The answer of a job that only evaluates a checkpoint: its last attempt's."""

    job = models.OneToOneField(Job, on_delete=models.CASCADE, primary_key=True, related_name="evaluation")
    checkpoint = models.ForeignKey(Checkpoint, on_delete=models.CASCADE, related_name="evaluations")
    at = models.DateTimeField()
    environment = models.CharField(max_length=40)
    num_prompts = models.PositiveIntegerField()  # answered and graded
    num_samples = models.PositiveIntegerField(db_default=1)  # k: answers that each prompt was asked for
    reward_mean = models.FloatField()  # avg@k
    reward_std = models.FloatField()
    reward_error = models.FloatField(db_default=0.0)  # standard error of reward_mean, over prompts
    pass_rate = models.FloatField(null=True)  # pass@k; null: not told
    pass_error = models.FloatField(db_default=0.0)
    length_mean = models.FloatField()

    class Meta:
        ordering: ClassVar = ["-at", "-job"]


class RegisteredModel(models.Model):
    """A name with its versions. One that was removed keeps its row, and so its count of versions."""

    id = models.CharField(primary_key=True, max_length=32, default=_model_id, editable=False)
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="models")
    name = models.CharField(max_length=100)
    created_at = models.DateTimeField()
    removed_at = models.DateTimeField(null=True)
    last_number = models.PositiveIntegerField(default=0)  # that was ever given to a version
    revision = models.PositiveIntegerField(default=1)  # for If-Match: grows with every version made or removed

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["team", "name"], name="one_model_per_name")]

    def __str__(self) -> str:
        return self.name


class ModelVersion(models.Model):
    """A model and its origin. The origin is copied, so that it stays true whatever becomes of the job."""

    model = models.ForeignKey(RegisteredModel, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    checkpoint = models.ForeignKey(Checkpoint, on_delete=models.PROTECT, related_name="promotions")
    note = models.TextField(blank=True, default="")
    created_at = models.DateTimeField()
    created_by = models.CharField(max_length=80)  # as actors are named everywhere: "key:…", "user:…"
    lineage = models.JSONField()
    revision = models.PositiveIntegerField(default=1)  # for If-Match: of the note

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["model", "number"], name="one_version_per_number"),
            models.UniqueConstraint(fields=["model", "checkpoint"], name="one_version_per_checkpoint"),
        ]
