"""A team's audit log."""

from django.db.models import QuerySet

from backend.audit.models import AuditEntry


def entries_of(team_id: str) -> QuerySet[AuditEntry]:
    """Newest first."""
    return AuditEntry.objects.filter(team_id=team_id).order_by("-seq")
