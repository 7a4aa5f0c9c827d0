"""What the engine measured: points of named series, and trajectories worth reading.

Invariant: every row carries the job's cursor at which it was written, so `cursor > N` is all that is new since N.
"""

from typing import ClassVar

from django.db import models

from backend.jobs.models import Job


class MetricSeries(models.Model):
    """An integer stands for (job, name) in every point: half the disk."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="series")
    name = models.CharField(max_length=100)

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["job", "name"], name="one_series_per_name")]


class MetricPoint(models.Model):
    pk = models.CompositePrimaryKey("series_id", "attempt", "step")
    series = models.ForeignKey(MetricSeries, on_delete=models.CASCADE, related_name="points")
    attempt = models.PositiveIntegerField()
    step = models.PositiveBigIntegerField()
    at = models.DateTimeField()
    value = models.FloatField()
    cursor = models.PositiveBigIntegerField()

    class Meta:
        indexes: ClassVar = [models.Index(fields=["series", "cursor"], name="point_pull")]


class Trajectory(models.Model):
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="trajectories")
    attempt = models.PositiveIntegerField()
    step = models.PositiveBigIntegerField()
    prompt_ordinal = models.PositiveBigIntegerField()
    sample = models.PositiveIntegerField()
    version = models.PositiveBigIntegerField()
    staleness = models.PositiveIntegerField()
    num_tokens = models.PositiveIntegerField()
    reward = models.FloatField()
    advantage = models.FloatField()
    prompt = models.TextField()
    response = models.TextField()
    remark = models.TextField(blank=True, default="")
    cursor = models.PositiveBigIntegerField()

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["job", "attempt", "step", "prompt_ordinal", "sample"], name="one_row_per_trajectory"
            )
        ]
        indexes: ClassVar = [
            models.Index(fields=["job", "cursor"], name="trajectory_pull"),
            models.Index(fields=["job", "-step"], name="trajectory_newest"),
        ]
