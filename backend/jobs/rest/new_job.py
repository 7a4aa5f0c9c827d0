"""Answers requests for a new job: rate-limited, created once per Idempotency-Key, with the job's location.

Invariant: the job, the record of its Idempotency-Key and the response are written in one transaction.
"""

from collections.abc import Callable
from datetime import datetime

from django.http import HttpRequest, HttpResponse

from backend.accounts.keys.bearer import caller_of, team_and_key
from backend.api.idempotency import Answer, once
from backend.api.limits.rate_limit import SUBMITS, EveryRequest
from backend.jobs.models import Job
from backend.jobs.rest.representations import represent_job
from backend.jobs.submitting.refusals import SpecRefused

COUNTED_SUBMISSION = EveryRequest(team_and_key, also=lambda: SUBMITS)
"""For a route's `throttle=`: counts before the body is parsed, so a refused spec counts as well."""


def answer_with_new_job(
    request: HttpRequest,
    make: Callable[[], Job],
    *,
    key: str | None,
    spec_at: str,
    now: datetime,
) -> HttpResponse:
    """`spec_at`: place in the body of the spec or its changes; pointers of a refusal start there."""
    caller = caller_of(request)

    def effect() -> Answer:
        shown = represent_job(make())
        return Answer(status=202, body=shown.model_dump(), location=shown.links.self)

    try:
        answer, replayed = once(
            request, effect, team_id=caller.team.pk, project_id=caller.key.project_id, key=key, now=now
        )
    except SpecRefused as refusal:
        raise refusal.under(spec_at) from None
    headers = {"Location": answer.location} | ({"Idempotency-Replayed": "true"} if replayed else {})
    return HttpResponse(answer.text, status=answer.status, content_type="application/json", headers=headers)
