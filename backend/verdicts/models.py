"""The verdict on each job that trains, as it was last judged.

Invariants:
- `alarms` of a job that goes on is what its events say: a kind is in it from its `alarm_raised` to its `alarm_ended`;
- a job that is over is judged once more, and then never again.
"""

from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from backend.jobs.models import Job


class JobVerdict(models.Model):
    job = models.OneToOneField(Job, on_delete=models.CASCADE, primary_key=True, related_name="+")
    cursor = models.PositiveBigIntegerField()  # of the job, when it was judged: without news there is nothing to judge
    judged_at = models.DateTimeField()
    step = models.PositiveIntegerField()
    stepped_at = models.DateTimeField()  # by our clock: when it was seen to come to this step, or not to be training
    kind = models.CharField(max_length=30)
    found = models.JSONField()  # `findings.Found`, the first is the verdict
    alarms = ArrayField(models.CharField(max_length=30), default=list)
    is_final = models.BooleanField(default=False)

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["judged_at"], condition=Q(is_final=False), name="verdicts_to_renew"),
        ]
