"""Why an attempt failed: a class, one sentence, what was seen, and what to do about it.

Invariants:
- a class of failure that says nothing about the job itself is tried again, at most so often without progress: an
  attempt that left a checkpoint of its own is progress, and the count begins anew;
- the evidence is kept with the attempt and holds no secret that we can recognise;
- what cannot be seen is left out, never made up.
"""

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, Field

from backend.jobs.models import Job, JobAttempt, JobState
from backend.jobs.resume_points import resume_point

LONGEST_TAIL: Final = 4_000
_MOST_FAULTS: Final = 3
_SECRETS = re.compile(r"(lam_(?:live|run)_)[0-9A-Za-z_-]+|(?i:(bearer\s+))\S+")
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


class RetryPolicy(NamedTuple):
    """`tries` in a row without progress. The first retry keeps the devices; the later ones give them back and wait."""

    tries: int
    at_once: int
    first_backoff_s: float


# A lost node is worth a few tries; a cluster without room is worth waiting for; the rest is somebody's to mend first.
RETRIES: Final[Mapping[str, RetryPolicy]] = {
    "infrastructure": RetryPolicy(tries=4, at_once=1, first_backoff_s=15.0),
    "capacity": RetryPolicy(tries=5, at_once=0, first_backoff_s=30.0),
}
LONGEST_BACKOFF_S: Final = 900.0

ADVICE: Final[Mapping[str, str]] = {
    "user_code": "Mend the environment's code; the log's last lines name the place. Then retry from a checkpoint.",
    "reward": "Try the grader on a few answers of your own; a reward must be a finite number. Then retry.",
    "config": "Change the spec as the message says and submit it again; nothing else will help.",
    "data": "Look at what the job reads, or retry from another checkpoint.",
    "capacity": "The cluster had no room although the pool had devices free. Retry later, or ask an operator.",
    "infrastructure": "Nothing is wrong with the job: retry it from its last checkpoint. If it recurs, tell us.",
    "platform": "This is a fault of ours. Retry it from its last checkpoint, and report the request of this page.",
    "timeout": "Retry from the last checkpoint with a larger max_runtime_s.",
    "budget": "Ask for a larger budget, or wait for the next period; then retry from the last checkpoint.",
}


class LastFact(BaseModel):
    seq: int
    at: datetime | None


class Evidence(BaseModel):
    """What was seen. Empty where nothing was."""

    exit_reason: str = Field("", description="How the driver's process ended, in the engine's words.")
    phase: str = ""
    step: int = 0
    last_fact: LastFact | None = None
    faults: list[str] = Field(default_factory=list, description="The last faults that the engine noticed.")
    log_tail: str = Field("", description="The last lines of the driver's log.")


class FailureExplained(BaseModel):
    failure_class: str
    cause: str = Field(description="One sentence.")
    advice: str
    attempt: int
    evidence: Evidence
    tries: int = Field(description="How many attempts of this kind are made in a row before a job fails.")
    tried: int
    resume_step: int | None = Field(description="A retry may go on after this step; null: only from the beginning.")


def note_failure(job: Job, attempt: JobAttempt, failure_class: str, *, exit_reason: str, log_tail: str = "") -> None:
    """With the attempt, in the caller's transaction; its job is locked."""
    faults = job.events.filter(type="fault_detected", actor=f"engine:{attempt.n}").order_by("-seq")[:_MOST_FAULTS]
    evidence = Evidence(
        exit_reason=exit_reason,
        phase=job.phase,
        step=job.step,
        last_fact=LastFact(seq=attempt.acked_seq, at=attempt.last_seen_at) if attempt.acked_seq else None,
        faults=[f"{event.data.get('component', '')}: {event.message}" for event in faults],
        log_tail=scrubbed(log_tail)[-LONGEST_TAIL:],
    )
    attempt.failure_class, attempt.evidence = failure_class, evidence.model_dump(mode="json")
    JobAttempt.objects.filter(pk=attempt.pk).update(failure_class=failure_class, evidence=attempt.evidence)


def add_log_tail(attempt: JobAttempt, log_tail: str) -> None:
    """Ray's log comes later than the driver's last fact."""
    if attempt.failure_class and not attempt.evidence.get("log_tail"):
        evidence = attempt.evidence | {"log_tail": scrubbed(log_tail)[-LONGEST_TAIL:]}
        JobAttempt.objects.filter(pk=attempt.pk).update(evidence=evidence)


def scrubbed(text: str) -> str:
    return _UNPRINTABLE.sub("", _SECRETS.sub(lambda found: f"{found[1] or found[2]}…", text))


class NextTry(NamedTuple):
    """What becomes of a job whose attempt has failed. `backoff_s` None: the next attempt begins at once."""

    is_left: bool
    backoff_s: float | None
    tried: int
    tries: int


def next_try(job: Job, failure_class: str) -> NextTry:
    tried = _tried_in_a_row(job, failure_class)
    policy = RETRIES.get(failure_class)
    if policy is None or tried >= policy.tries:
        return NextTry(is_left=False, backoff_s=None, tried=tried, tries=policy.tries if policy else 1)
    num_waits = tried - policy.at_once
    if num_waits <= 0:
        return NextTry(is_left=True, backoff_s=None, tried=tried, tries=policy.tries)
    backoff_s = min(LONGEST_BACKOFF_S, policy.first_backoff_s * 2.0 ** (num_waits - 1))
    return NextTry(is_left=True, backoff_s=backoff_s, tried=tried, tries=policy.tries)


def not_before(now: datetime, backoff_s: float) -> datetime:
    return now + timedelta(seconds=backoff_s)


def explain_failure(job: Job) -> FailureExplained:
    """Of a job that has failed, from what was kept when it did."""
    assert job.state == JobState.FAILED, f"{job.pk} is {job.state}"
    attempt = job.attempts.exclude(failure_class="").order_by("-n").first()
    failure_class = job.failure_class or "platform"
    policy = RETRIES.get(failure_class)
    point = resume_point(job)
    return FailureExplained(
        failure_class=failure_class,
        cause=_first_sentence(job.message),
        advice=ADVICE[failure_class],
        attempt=attempt.n if attempt else job.num_attempts,
        evidence=Evidence.model_validate(attempt.evidence) if attempt else Evidence(),
        tries=policy.tries if policy else 1,
        tried=_tried_in_a_row(job, failure_class),
        resume_step=point.step if point else None,
    )


def _tried_in_a_row(job: Job, failure_class: str) -> int:
    """Attempts of this class, back to the last one that left a checkpoint."""
    with_checkpoint = set(job.checkpoints.values_list("attempt", flat=True))
    tried = 0
    for n, its_class in job.attempts.order_by("-n").values_list("n", "failure_class"):
        tried += its_class == failure_class
        if n in with_checkpoint:
            break
    return tried


def _first_sentence(message: str) -> str:
    lines: list[Any] = message.strip().splitlines()
    return str(lines[0]) if lines else "It failed, and nothing was said about why."
