"""The latest verdict on each training job.

Invariants:
- a running job's `alarms` match its events: a kind is listed from its `alarm_raised` to its `alarm_ended`;
- a job that has ended is judged once more, then never again.
"""

from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from backend.jobs.models import Job


class JobVerdict(models.Model):
    job = models.OneToOneField(Job, on_delete=models.CASCADE, primary_key=True, related_name="+")
    cursor = models.PositiveBigIntegerField()  # the job's when judged: unchanged means no news
    judged_at = models.DateTimeField()
    step = models.PositiveIntegerField()
    stepped_at = models.DateTimeField()  # database clock: first tick at this step, or not training
    kind = models.CharField(max_length=30)
    found = models.JSONField()  # `findings.Found`, the first is the verdict
    alarms = ArrayField(models.CharField(max_length=30), default=list)
    is_final = models.BooleanField(default=False)

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["judged_at"], condition=Q(is_final=False), name="verdicts_to_renew"),
        ]
