"""Failures of attempts: a class, one sentence, evidence, and advice.

Invariants:
- a failure class that is not the job's fault is retried, a limited number of times without progress: an attempt that
  wrote a checkpoint is progress and resets the count;
- a failed job is explained by the attempt that failed with the job's own class, never by an earlier one of another.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, Field

from backend.jobs.attempts.evidence import LONGEST_TAIL, Evidence, scrub, take_evidence
from backend.jobs.attempts.resume_points import checkpoints, resume_point
from backend.jobs.models import Job, JobAttempt, JobState


class RetryPolicy(NamedTuple):
    """Tries without progress. The first `at_once` retries keep the devices; later ones release them and wait."""

    tries: int
    at_once: int
    first_backoff_s: float


# A lost node is worth a few tries, a full cluster is worth waiting for, and an unknown cause, whose time is billed, is
# worth one more try; everything else needs a user first.
RETRIES: Final[Mapping[str, RetryPolicy]] = {
    "infrastructure": RetryPolicy(tries=4, at_once=1, first_backoff_s=15.0),
    "capacity": RetryPolicy(tries=5, at_once=0, first_backoff_s=30.0),
    "platform": RetryPolicy(tries=2, at_once=1, first_backoff_s=30.0),
}
LONGEST_BACKOFF_S: Final = 900.0

ADVICE: Final[Mapping[str, str]] = {
    "user_code": "Fix the environment's code: the last log lines name the place. Then retry from a checkpoint.",
    "reward": "Check the reward function on a few answers: a reward must be a finite number. Then retry.",
    "config": "Fix the spec as the message describes and submit it again. A retry will not help.",
    "data": "Check the data that the job reads, or retry from another checkpoint.",
    "capacity": "The cluster had no room although the pool had free devices. Retry later, or contact an operator.",
    "memory": "A retry would run out again. Submit it with the change that the message names, or on larger devices.",
    "infrastructure": "The job itself is fine. Retry it from its last checkpoint. If this recurs, contact an operator.",
    "platform": "The cause is unknown, so the time is billed. Read the last log lines. If nothing in the job explains "
    "them, report the request ID of this page to an operator.",
    "timeout": "Retry from the last checkpoint with a larger max_runtime_s.",
    "budget": "Request a larger budget or wait for the next period, then retry from the last checkpoint.",
}


class FailureExplained(BaseModel):
    failure_class: str
    cause: str = Field(description="One sentence.")
    advice: str
    attempt: int
    evidence: Evidence
    tries: int = Field(description="Attempts without progress before a job fails with this class.")
    tried: int
    resume_step: int | None = Field(description="A retry can resume after this step. Null: only from the beginning.")


def note_failure(job: Job, attempt: JobAttempt, failure_class: str, *, exit_reason: str, log_tail: str = "") -> None:
    """Stores the class and the evidence with the attempt, in the caller's transaction; the job is locked."""
    evidence = take_evidence(job, attempt, exit_reason=exit_reason, log_tail=log_tail)
    attempt.failure_class, attempt.evidence = failure_class, evidence.model_dump(mode="json")
    JobAttempt.objects.filter(pk=attempt.pk).update(failure_class=failure_class, evidence=attempt.evidence)


def add_log_tail(attempt: JobAttempt, log_tail: str) -> None:
    """Adds the log's end, which Ray has only after the driver's last fact."""
    if attempt.failure_class and not attempt.evidence.get("log_tail"):
        evidence = attempt.evidence | {"log_tail": scrub(log_tail)[-LONGEST_TAIL:]}
        JobAttempt.objects.filter(pk=attempt.pk).update(evidence=evidence)


class NextTry(NamedTuple):
    """The next attempt after a failure. `backoff_s` None: at once."""

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
    """Explains a failed job from the evidence stored when it failed."""
    assert job.state == JobState.FAILED, f"{job.pk} is {job.state}"
    failure_class = job.failure_class or "platform"
    attempt = job.attempts.filter(failure_class=failure_class).order_by("-n").first()
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
    with_checkpoint = checkpoints().attempts_with_one(job)
    tried = 0
    for n, its_class in job.attempts.order_by("-n").values_list("n", "failure_class"):
        tried += its_class == failure_class
        if n in with_checkpoint:
            break
    return tried


def _first_sentence(message: str) -> str:
    lines: list[Any] = message.strip().splitlines()
    return str(lines[0]) if lines else "The job failed without a message."
