"""The audit log: who did what to which resource, as one chain of rows per team, each with its predecessor's hash.

Invariants, enforced by triggers, for raw SQL too:
- rows are only added; a head advances by one, or is anchored;
- a team with a chain cannot be deleted, so its log survives.
"""

from typing import ClassVar

from django.db import models

FIRST_HASH = "0" * 64
"""The predecessor's hash of a team's first entry."""


class AuditHead(models.Model):
    """The end of a team's chain. Writing the next entry locks this row."""

    team = models.OneToOneField("accounts.Team", on_delete=models.PROTECT, primary_key=True, related_name="audit_head")
    seq = models.PositiveBigIntegerField(default=0)
    hash = models.CharField(max_length=64, default=FIRST_HASH)
    anchored_seq = models.PositiveBigIntegerField(default=0)  # only a hint for the next signing


class AuditEntry(models.Model):
    team = models.ForeignKey("accounts.Team", on_delete=models.PROTECT, related_name="audit_entries")
    seq = models.PositiveBigIntegerField()
    at = models.DateTimeField()
    actor = models.CharField(max_length=80)  # "user:<id>", "key:<id>", "scheduler", "reconcile"
    action = models.CharField(max_length=60)  # past participle: "key.created", "member.removed"
    target = models.CharField(max_length=80)
    data = models.JSONField(default=dict)
    request_id = models.CharField(max_length=64, blank=True, default="")
    ip = models.CharField(max_length=45, blank=True, default="")
    previous_hash = models.CharField(max_length=64)
    hash = models.CharField(max_length=64)

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["team", "seq"], name="one_audit_entry_per_seq")]
        indexes: ClassVar = [
            # GET /audit-log?actor= and ?target=, newest first.
            models.Index(fields=["team", "actor", "-seq"], name="audit_by_actor"),
            models.Index(fields=["team", "target", "-seq"], name="audit_by_target"),
        ]
