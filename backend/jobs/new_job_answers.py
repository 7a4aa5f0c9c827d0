"""How a request for a new job is answered: counted, made once however often it is sent, and told where the job is.

Invariant: the job, what is remembered of its Idempotency-Key, and the answer are one transaction.
"""

from collections.abc import Callable
from datetime import datetime

from django.http import HttpRequest, HttpResponse
from ninja import Status

from backend.accounts.bearer import caller_of
from backend.api.idempotency import Answer, once
from backend.api.rate_limit import SUBMITS, take
from backend.jobs.models import Job
from backend.jobs.representations import represent_job
from backend.jobs.services import SpecRefused


def answer_with_new_job(
    request: HttpRequest,
    response: HttpResponse,
    make: Callable[[], Job],
    *,
    key: str | None,
    spec_at: str,
    now: datetime,
) -> Status[dict[str, object]]:
    """`spec_at`: where in the body the spec, or what changes it, stands; a refusal points there."""
    caller = caller_of(request)
    allowance = take(SUBMITS, caller=caller.key.pk)  # before the transaction: a refused spec counts as well

    def effect() -> Answer:
        shown = represent_job(make())
        return Answer(status=202, body=shown.model_dump(mode="json"), location=shown.links.self)

    try:
        answer, replayed = once(request, effect, team_id=caller.team.pk, key=key, now=now)
    except SpecRefused as refusal:
        raise refusal.under(spec_at) from None
    headers = allowance.headers | {"Location": answer.location}
    if replayed:
        headers["Idempotency-Replayed"] = "true"
    for name, value in headers.items():
        response[name] = value
    return Status(answer.status, answer.body)
