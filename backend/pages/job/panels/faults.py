"""The faults of a job: what happened, what the engine did, and what became of the job; and its attempts.

Invariant: the page shows only what was recorded at the time. If the job's state did not change after a fault, the page
states that, and no reason.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from backend.jobs.models import Job, JobAttempt, JobEvent, JobState
from backend.jobs.selectors import attempts_of
from backend.pages.job.panels.folded_texts import FoldedText, TextFolder

MOST_SHOWN: Final = 100
_KINDS: Final = ("fault_detected", "stalled")


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultShown:
    at: datetime
    attempt: str
    """Empty if the fault was not noticed by an attempt."""
    part: str
    happened: FoldedText
    did: str
    then: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptShown:
    attempt: JobAttempt
    lasted: timedelta | None
    outcome_text: FoldedText | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultsShown:
    faults: Sequence[FaultShown]
    """Newest first."""
    num_faults: int
    attempts: Sequence[AttemptShown]


def faults_shown_of(job: Job, *, now: datetime) -> FaultsShown:
    of_kind = job.events.filter(type__in=_KINDS)
    newest = list(of_kind.order_by("-seq")[:MOST_SHOWN])
    first = newest[-1].seq if newest else 0
    moves = list(job.events.filter(type="state_changed", seq__gt=first).order_by("seq")) if newest else []
    return FaultsShown(
        faults=[_fault(event, moves, before=_next_fault(event, newest)) for event in newest],
        num_faults=of_kind.count(),
        attempts=[_attempt(each, now=now) for each in attempts_of(job)],
    )


def _next_fault(event: JobEvent, newest: Sequence[JobEvent]) -> int | None:
    return min((each.seq for each in newest if each.seq > event.seq), default=None)


def _fault(event: JobEvent, moves: Sequence[JobEvent], *, before: int | None) -> FaultShown:
    data = event.data if isinstance(event.data, dict) else {}
    is_stall = event.type == "stalled"
    happened = TextFolder().fold(event.message) or FoldedText(headline="no message", rest="")
    return FaultShown(
        at=event.at,
        attempt=event.actor.removeprefix("engine:") if event.actor.startswith("engine:") else "",
        part=str(data.get("component") or ("driver" if is_stall else "unnamed")),
        happened=happened,
        did=str(data.get("action") or ""),
        then=_describe_outcome(event, moves, before=before),
    )


def _describe_outcome(event: JobEvent, moves: Sequence[JobEvent], *, before: int | None) -> str:
    """The outcome up to the next fault, or to the end."""
    after = [move for move in moves if move.seq > event.seq and (before is None or move.seq < before)]
    if not after:
        return "the job's state did not change"
    left = after[0]
    if left.to_state != JobState.RECOVERING:
        return f"the job was {left.to_state} next"
    back = next((move for move in after[1:] if move.to_state == JobState.RUNNING), None)
    if back is not None:
        return f"the job ran again after {(back.at - event.at).total_seconds():.0f} s"
    return f"the job is recovering, then {after[-1].to_state}" if len(after) > 1 else "the job was recovering"


def _attempt(attempt: JobAttempt, *, now: datetime) -> AttemptShown:
    end = attempt.ended_at or now
    return AttemptShown(
        attempt=attempt,
        lasted=end - attempt.created_at,
        outcome_text=TextFolder().fold(attempt.message) if attempt.message else None,
    )
