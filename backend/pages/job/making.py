"""Jobs created by a button: from a checkpoint, or from a job that has ended.

Invariant: one rendering of a button creates at most one job, however often it is sent: its token is an idempotency key.
"""

import re
import secrets
from collections.abc import Callable
from datetime import datetime
from typing import Final

from django.http import HttpRequest
from django.urls import reverse

from backend.api.idempotency import Answer, once
from backend.api.limits.rate_limit import SUBMITS, take, take_sent
from backend.errors import Invalid
from backend.jobs.models import Job

FORM: Final = "application/x-www-form-urlencoded"
"""The only content type whose repeated submissions can be recognized."""
NOT_A_FORM: Final = f"This form must be sent as {FORM}."
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{20,60}")


def new_token() -> str:
    return secrets.token_urlsafe(24)


def made_once(
    request: HttpRequest, make: Callable[[], Job], *, team_id: str, now: datetime, of: str = ""
) -> tuple[str, bool]:
    """The URL of the job's page, and whether this request created the job. `of`: the source job, if a button creates
    one for each of several. Raises `Refusal`."""
    token = request.POST.get("token", "")
    if not _TOKEN.fullmatch(token):
        raise Invalid("The form was incomplete. Reload the page and try again.")

    def effect() -> Answer:
        made = make()
        return Answer(status=303, body={"id": made.pk}, location=reverse("job", args=[made.pk]))

    take_sent(sum(map(len, request.POST.values())), of=team_id)
    take(SUBMITS, of=team_id)
    answer, replayed = once(request, effect, team_id=team_id, key=f"page:{token}{of}", now=now)
    return answer.location, not replayed
