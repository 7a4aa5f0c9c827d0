"""Everything that the engine measured and reported: series, trajectories, logs, and the activity of replicas.

Invariants:
- rows that pages pull carry the job's cursor of their write, so `cursor > N` is everything new since N;
- rows are small: long texts and tokens of trajectories are in files of the store, log lines in compressed batches.
"""

from typing import ClassVar

from django.contrib.postgres.indexes import GinIndex
from django.contrib.postgres.search import SearchVectorField
from django.db import models
from django.db.models import Func, Q, Value

from backend.jobs.models import Job


class MetricSeries(models.Model):
    """A metric of a job. Points store its id instead of (job, name), which halves the disk space."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="series", db_index=False)
    name = models.CharField(max_length=100)
    rolled_to = models.PositiveBigIntegerField(default=0)  # points of steps below this are in the rollups
    is_reduced = models.BooleanField(default=False)  # points of steps below `rolled_to` are deleted

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["job", "name"], name="one_series_per_name")]


class MetricPoint(models.Model):
    pk = models.CompositePrimaryKey("series_id", "step", "attempt")  # a range of steps is one range of the index
    # Not checked by the database: that would be half of a point's cost. Its writer has just read the series.
    series = models.ForeignKey(
        MetricSeries, on_delete=models.CASCADE, related_name="points", db_index=False, db_constraint=False
    )
    attempt = models.PositiveIntegerField()
    step = models.PositiveBigIntegerField()
    at = models.DateTimeField()
    value = models.FloatField()
    cursor = models.PositiveBigIntegerField()

    class Meta:
        indexes: ClassVar = [models.Index(fields=["series", "cursor"], name="point_pull")]


class MetricRollup(models.Model):
    """The summary of the points of `size` steps, for each step the latest attempt's."""

    pk = models.CompositePrimaryKey("series_id", "size", "first_step")
    series = models.ForeignKey(MetricSeries, on_delete=models.CASCADE, related_name="rollups", db_index=False)
    size = models.PositiveIntegerField()
    first_step = models.PositiveBigIntegerField()
    last_step = models.PositiveBigIntegerField()  # the last step with a point
    count = models.PositiveIntegerField()
    total = models.FloatField()
    low = models.FloatField()
    high = models.FloatField()


class TrajectoryFile(models.Model):
    """A Parquet file in the store: full trajectories, one per row."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="trajectory_files")
    key = models.CharField(max_length=200, unique=True)
    num_bytes = models.PositiveBigIntegerField()
    num_rows = models.PositiveIntegerField()
    created_at = models.DateTimeField()


class Trajectory(models.Model):
    """The index of the reported trajectories. Its texts are only the beginnings."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="trajectories", db_index=False)
    attempt = models.PositiveIntegerField()
    step = models.PositiveBigIntegerField()
    prompt_ordinal = models.PositiveBigIntegerField()
    sample = models.PositiveIntegerField()
    version = models.PositiveBigIntegerField()
    staleness = models.PositiveIntegerField()
    num_tokens = models.PositiveIntegerField()
    reward = models.FloatField()
    advantage = models.FloatField()
    outcome = models.CharField(max_length=20, default="rewarded")  # as reported by the engine
    prompt = models.TextField()
    response = models.TextField()
    remark = models.TextField(blank=True, default="")
    end = models.CharField(max_length=20, default="trained", db_default="trained")  # as reported by the engine
    reason = models.TextField(blank=True, default="", db_default="")  # of that end, if it was not trained
    group_size = models.PositiveIntegerField(default=0, db_default=0)  # 0: not reported
    num_turns = models.PositiveIntegerField(default=0, db_default=0)  # 0: the response is one message of the model
    cursor = models.PositiveBigIntegerField()
    file = models.ForeignKey(TrajectoryFile, on_delete=models.SET_NULL, null=True, related_name="trajectories")
    row = models.PositiveIntegerField(null=True)  # its place in the file

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["job", "attempt", "step", "prompt_ordinal", "sample"], name="one_row_per_trajectory"
            ),
            models.CheckConstraint(
                condition=Q(file__isnull=True, row__isnull=True) | Q(file__isnull=False, row__isnull=False),
                name="trajectory_place_is_whole",
            ),
        ]
        indexes: ClassVar = [
            models.Index(fields=["job", "cursor"], name="trajectory_pull"),
            models.Index(fields=["job", "-step", "-id"], name="trajectory_newest"),
        ]

    @property
    def trajectory_id(self) -> str:
        """The same however often its fact arrives."""
        return f"traj_{self.attempt}_{self.step}_{self.prompt_ordinal}_{self.sample}"


class UnarchivedTrajectory(models.Model):
    """A full trajectory until it is in a file: the store may be down for hours and nothing is lost."""

    trajectory = models.OneToOneField(Trajectory, on_delete=models.CASCADE, primary_key=True, related_name="unarchived")
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="unarchived_trajectories", db_index=False)
    content = models.BinaryField()  # compressed JSON of a TrajectorySample
    arrived_at = models.DateTimeField()

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["job", "trajectory"], name="unarchived_of_job"),
            models.Index(fields=["arrived_at"], name="unarchived_oldest"),
        ]


class TrajectoryWords(models.Model):
    """The words of a trajectory for the search, and their texts. Separate from its row, which changes when it goes into
    a file: every word would be indexed again."""

    trajectory = models.OneToOneField(Trajectory, on_delete=models.CASCADE, primary_key=True, related_name="words")
    # No index: job and team are words of the index below, and one more would tempt the planner to read all texts.
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="+", db_index=False)
    words = models.TextField()  # separated by spaces; the database compresses them
    content = models.BinaryField()  # compressed JSON

    class Meta:
        # An index on an expression: storing the vector would take more space than all the texts.
        indexes: ClassVar = [
            GinIndex(
                Func(
                    Func("words", Value(" "), function="string_to_array"),
                    function="array_to_tsvector",
                    output_field=SearchVectorField(),
                ),
                name="trajectory_words",
            )
        ]


class LogBatch(models.Model):
    """Some consecutive lines of one component, compressed."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="log_batches", db_index=False)
    attempt = models.PositiveIntegerField()
    component = models.CharField(max_length=60)
    cursor = models.PositiveBigIntegerField()
    first_at = models.DateTimeField()
    last_at = models.DateTimeField()
    highest_level = models.PositiveSmallIntegerField()  # spares decompressing batches without a relevant line
    num_lines = models.PositiveIntegerField()
    num_dropped = models.PositiveIntegerField()  # lines that the engine dropped before these
    bytes_so_far = models.PositiveBigIntegerField()  # compressed size of the job's batches up to this one
    content = models.BinaryField()

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["job", "cursor"], name="one_log_batch_per_cursor")]
        indexes: ClassVar = [models.Index(fields=["job", "component", "cursor"], name="log_of_component")]


class ReplicaActivity(models.Model):
    """Activity of replicas between two facts: their spans and what they hold, compressed."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="activity", db_index=False)
    attempt = models.PositiveIntegerField()
    since = models.DateTimeField()
    until = models.DateTimeField()
    num_spans = models.PositiveIntegerField()
    content = models.BinaryField()
    num_replicas = models.PositiveIntegerField(default=0, db_default=0)  # of the job; 0: not reported
    num_states = models.PositiveIntegerField(default=0, db_default=0)
    states = models.BinaryField(null=True)  # separate from `content`, which earlier releases read

    class Meta:
        indexes: ClassVar = [models.Index(fields=["job", "until"], name="activity_by_time")]


class SampleLedger(models.Model):
    """Ends of all samples of a job, by the engine's last report."""

    job = models.OneToOneField(Job, on_delete=models.CASCADE, primary_key=True, related_name="+")
    attempt = models.PositiveIntegerField()
    step = models.PositiveBigIntegerField()
    counts = models.JSONField()
    is_final = models.BooleanField()  # the attempt's last report
    at = models.DateTimeField()


class ReplicaMinute(models.Model):
    """Seconds of one replica's minute by activity, drawn where spans would be too many."""

    pk = models.CompositePrimaryKey("job_id", "minute", "attempt", "replica", "doing")
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="replica_minutes", db_index=False)
    minute = models.DateTimeField()
    attempt = models.PositiveIntegerField()
    replica = models.PositiveIntegerField()
    doing = models.CharField(max_length=20)
    seconds = models.FloatField()


class RemovedKind(models.TextChoices):
    LOGS = "logs"
    TRAJECTORIES = "trajectories"


class Removal(models.Model):
    """A removal of a job's lines or trajectories some time after its end, in progress or done."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="removals")
    kind = models.CharField(max_length=20, choices=RemovedKind.choices)
    at = models.DateTimeField()  # readers get 410 from then on
    is_done = models.BooleanField(default=False)  # nothing is left

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["job", "kind"], name="one_removal_per_kind")]
