"""Who did what to which thing: one chain of rows a team, each holding the hash of the one before.

Invariant: rows are added and nothing else, which triggers hold for raw SQL too.
"""

from typing import ClassVar

from django.db import models


class AuditHead(models.Model):
    """The end of a team's chain; the row is the lock under which the next entry is written."""

    team = models.OneToOneField("accounts.Team", on_delete=models.CASCADE, primary_key=True, related_name="audit_head")
    seq = models.PositiveBigIntegerField(default=0)
    hash = models.CharField(max_length=64, default="0" * 64)


class AuditEntry(models.Model):
    team = models.ForeignKey("accounts.Team", on_delete=models.CASCADE, related_name="audit_entries")
    seq = models.PositiveBigIntegerField()
    at = models.DateTimeField()
    actor = models.CharField(max_length=80)  # "user:<id>", "key:<id>", "scheduler", "reconcile"
    action = models.CharField(max_length=60)  # past participle: "key.created", "member.removed"
    target = models.CharField(max_length=80)
    data = models.JSONField(default=dict)
    request_id = models.CharField(max_length=64, blank=True, default="")
    previous_hash = models.CharField(max_length=64)
    hash = models.CharField(max_length=64)

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["team", "seq"], name="one_audit_entry_per_seq")]
