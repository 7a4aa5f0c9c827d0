"""Routes for drivers: /internal/engine/vocabulary, /facts and /heartbeat. Not part of the public schema.

Invariant: the bearer token identifies the attempt; the body's attempt and fence must match, or nothing happens.
"""

from django.http import HttpRequest
from ninja import NinjaAPI
from ninja.security import HttpBearer

from backend.api.bodies import JsonParser
from backend.api.handlers import answer_with_problems
from backend.clock import database_now
from backend.jobs.attempts.tokens import attempt_of_token
from backend.jobs.models import JobAttempt
from backend.telemetry.intake.delay import note_delay
from backend.telemetry.intake.ingest import ingest_facts, note_arrival, note_heartbeat
from engine.spec.control import VOCABULARY_DIGEST, FactAck, FactBatch, Heartbeat, HeartbeatReply, Vocabulary
from engine.spec.facts import FACT_NAMES
from engine.spec.logs.log_subject import about


class AttemptToken(HttpBearer):
    def authenticate(self, request: HttpRequest, token: str) -> JobAttempt | None:
        return attempt_of_token(token)


class FactsToken(AttemptToken):
    """Checked before the body is parsed."""

    def authenticate(self, request: HttpRequest, token: str) -> JobAttempt | None:
        attempt = super().authenticate(request, token)
        if attempt is not None:
            note_arrival(attempt, now=database_now())
        return attempt


internal_api = NinjaAPI(
    title="Laminar, for its engine",
    urls_namespace="internal",
    openapi_url=None,
    docs_url=None,
    parser=JsonParser(),
    auth=AttemptToken(),
)
answer_with_problems(internal_api)


@internal_api.get("/vocabulary", response=Vocabulary)
def vocabulary(request: HttpRequest) -> Vocabulary:
    return Vocabulary(names=sorted(FACT_NAMES))


@internal_api.post("/facts", response=FactAck, auth=FactsToken())
def facts(request: HttpRequest, batch: FactBatch) -> FactAck:
    attempt = _attempt_of(request)
    now = database_now()
    with about(job=attempt.job_id, attempt=attempt.n):
        acked = ingest_facts(attempt, batch, now=now)
    note_delay(batch.facts, now=now)
    return FactAck(acked=acked, vocabulary=VOCABULARY_DIGEST)


@internal_api.post("/heartbeat", response=HeartbeatReply)
def heartbeat(request: HttpRequest, beat: Heartbeat) -> HeartbeatReply:
    return HeartbeatReply(requests=note_heartbeat(_attempt_of(request), beat, now=database_now()))


def _attempt_of(request: HttpRequest) -> JobAttempt:
    attempt = getattr(request, "auth", None)
    assert isinstance(attempt, JobAttempt)
    return attempt
