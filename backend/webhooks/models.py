"""Endpoints that receive a team's job events, and every delivery to them: pending, delivered or dead.

    JobEvent ──trigger, same transaction──▶ PendingEvent ──fan_out──▶ Delivery, one an endpoint ──send──▶ receiver

Invariants:
- an event that any endpoint of the team subscribes to has a PendingEvent from its own commit until its deliveries are
  written. Rows are claimed one by one, never by "all above id N", so that a late commit is not skipped;
- an endpoint gets one delivery per event; its `message_id` and body never change;
- a finished delivery (delivered, dead) is attempted again only on request.
"""

from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from backend.accounts.models import Team
from backend.ids import new_id
from backend.jobs.models import JobEvent


def _endpoint_id() -> str:
    return new_id("whk")


def _delivery_id() -> str:
    return new_id("whd")


class WebhookEndpoint(models.Model):
    id = models.CharField(primary_key=True, max_length=32, default=_endpoint_id, editable=False)
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="webhooks")
    url = models.CharField(max_length=1_000)
    description = models.CharField(max_length=200, blank=True, default="")
    events = ArrayField(models.CharField(max_length=60))  # "job.succeeded", "job.*", "*"
    secret = models.TextField()  # sealed, see `secret_box`
    previous_secret = models.TextField(blank=True, default="")
    previous_until = models.DateTimeField(null=True)  # until then both secrets sign
    version = models.PositiveIntegerField(default=1)
    created_at = models.DateTimeField()
    disabled_at = models.DateTimeField(null=True)
    disabled_reason = models.CharField(max_length=200, blank=True, default="")
    num_failures = models.PositiveIntegerField(default=0)  # consecutive; reset by a success
    not_before = models.DateTimeField(null=True)  # pause after failures: no attempts before
    last_success_at = models.DateTimeField(null=True)

    class Meta:
        # For each event the trigger checks whether the team has an active endpoint.
        indexes: ClassVar = [
            models.Index(fields=["team"], condition=Q(disabled_at__isnull=True), name="live_webhooks_of_team")
        ]


class PendingEvent(models.Model):
    """An event whose deliveries are not written yet; inserted by a trigger on jobs_jobevent (see the migration)."""

    event = models.OneToOneField(JobEvent, on_delete=models.CASCADE, primary_key=True, related_name="+")


class DeliveryState(models.TextChoices):
    PENDING = "pending"
    DELIVERED = "delivered"
    DEAD = "dead"


class WebhookDelivery(models.Model):
    id = models.CharField(primary_key=True, max_length=32, default=_delivery_id, editable=False)
    endpoint = models.ForeignKey(WebhookEndpoint, on_delete=models.CASCADE, related_name="deliveries")
    event = models.ForeignKey(JobEvent, on_delete=models.CASCADE, null=True, related_name="+")  # null: test message
    message_id = models.CharField(max_length=64)
    type = models.CharField(max_length=60)
    body = models.TextField()
    state = models.CharField(max_length=10, choices=DeliveryState.choices, default=DeliveryState.PENDING)
    num_attempts = models.PositiveIntegerField(default=0)
    due_at = models.DateTimeField(null=True)  # while pending; a claim moves it ahead, in case the sender dies
    attempts = models.JSONField(default=list)  # the newest 12: {at, status, error, ms}
    created_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["endpoint", "event"], name="one_delivery_per_event"),
            models.CheckConstraint(
                condition=Q(state="pending", due_at__isnull=False, finished_at__isnull=True)
                | (~Q(state="pending") & Q(due_at__isnull=True, finished_at__isnull=False)),
                name="delivery_due_iff_pending",
            ),
        ]
        indexes: ClassVar = [
            models.Index(fields=["due_at"], condition=Q(state="pending"), name="deliveries_due"),
            models.Index(fields=["endpoint", "-created_at", "-id"], name="deliveries_of_endpoint"),
        ]


class SenderLease(models.Model):
    """The right to send: one row per sender that may run concurrently."""

    slot = models.PositiveSmallIntegerField(primary_key=True)
    held_until = models.DateTimeField()
