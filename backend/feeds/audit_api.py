"""GET /audit-log: the actions in the caller's team."""

from datetime import datetime
from typing import Annotated, Any

from django.http import HttpRequest
from ninja import Query, Router
from pydantic import BaseModel

from backend.accounts.keys.bearer import ApiKeyAuth, caller_of
from backend.api.pagination import DEFAULT_LIMIT, Limit, Page
from backend.api.problems import problems
from backend.audit.models import AuditEntry
from backend.audit.selectors import entries_of
from backend.borders.types import ZonedMoment
from engine.spec.strict import Text

router = Router(tags=["Audit"])


class AuditEntryOut(BaseModel):
    """An entry of the log. `hash` covers the entry and `previous_hash`: a team's entries form one chain."""

    seq: int
    at: datetime
    actor: str
    action: str
    target: str
    data: dict[str, Any]
    request_id: str
    ip: str
    previous_hash: str
    hash: str


@router.get(
    "/audit-log",
    auth=ApiKeyAuth("audit:read"),
    response={200: Page[AuditEntryOut]} | problems(422),
    summary="List audit log entries",
)
def audit_log(
    request: HttpRequest,
    actor: Annotated[Text | None, Query(max_length=80, description="For example `key:key_…`.")] = None,
    action: Annotated[Text | None, Query(max_length=60, description="For example `key.created`.")] = None,
    target: Annotated[Text | None, Query(max_length=80)] = None,
    since: Annotated[ZonedMoment | None, Query()] = None,
    after: Annotated[int, Query(ge=0, le=2**62, description="Only entries with a higher `seq`.")] = 0,
    cursor: Annotated[
        str | None, Query(pattern="^[0-9]{1,18}$", description="`next_cursor` of the previous page.")
    ] = None,
    limit: Limit = DEFAULT_LIMIT,
) -> Page[AuditEntryOut]:
    """Newest first."""
    entries = entries_of(caller_of(request).team.pk)
    filters = {"actor": actor, "action": action, "target": target, "at__gte": since, "seq__gt": after or None}
    entries = entries.filter(**{name: value for name, value in filters.items() if value is not None})
    if cursor is not None:
        entries = entries.filter(seq__lt=int(cursor))
    rows = list(entries[: limit + 1])
    has_more = len(rows) > limit
    return Page(
        data=[_represent(entry) for entry in rows[:limit]],
        has_more=has_more,
        next_cursor=str(rows[limit - 1].seq) if has_more else None,
    )


def _represent(entry: AuditEntry) -> AuditEntryOut:
    return AuditEntryOut(**{name: getattr(entry, name) for name in AuditEntryOut.model_fields})
