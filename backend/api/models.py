"""Tables of the API: stored responses of idempotent requests, and rate limits.

Invariant: a response is stored in the transaction of its effect, so neither exists without the other.
"""

from typing import ClassVar

from django.db import models


class IdempotencyKey(models.Model):
    team = models.ForeignKey("accounts.Team", on_delete=models.CASCADE, related_name="+")
    key = models.CharField(max_length=255)
    method = models.CharField(max_length=10)
    path = models.CharField(max_length=500)
    body_sha256 = models.CharField(max_length=64)
    status = models.PositiveSmallIntegerField(null=True)  # null only inside the transaction that fills it
    response = models.JSONField(null=True)
    location = models.CharField(max_length=500, blank=True, default="")
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["team", "key"], name="one_answer_per_idempotency_key")]
        indexes: ClassVar = [models.Index(fields=["expires_at"], name="idempotency_expiry")]


class RateBucket(models.Model):
    """A caller's bucket. `full_at`: when it is full again if unused until then (GCRA's arrival time)."""

    name = models.CharField(primary_key=True, max_length=120)
    full_at = models.DateTimeField()


class BackgroundTime(models.Model):
    """Number of runs and total seconds of one background task since the table was created."""

    name = models.CharField(primary_key=True, max_length=80)
    runs = models.PositiveBigIntegerField()
    failures = models.PositiveBigIntegerField()
    seconds = models.FloatField()
    longest_s = models.FloatField()
    last_at = models.DateTimeField()
