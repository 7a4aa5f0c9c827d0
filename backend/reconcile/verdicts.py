"""What to do about one job, given what Postgres holds and what Ray answered. Pure: seconds in, one verdict out.

Invariants:
- losing sight of a job is never its death: only Ray's own word that the submission is over ends an attempt, and only
  after the grace in which its last facts may still arrive;
- without an answer of Ray's nothing is failed, relaunched or let go;
- a stopping job keeps its devices until Ray says that its submission is over, or the last deadline passed.

                       driver speaks ──▶ nothing to do
  silent > 10 s ──▶ ask Ray ──▶ pending, running ──▶ StillAlive
                            └──▶ over, unknown ──▶ silent > 20 s ──▶ AttemptLost
  stopping > 20 s ─▶ ask Ray ──▶ pending, running ──▶ StopSubmission (> 120 s: Finish all the same)
                            └──▶ over, unknown ──▶ Finish
"""

from dataclasses import dataclass
from enum import Enum, auto

from backend.jobs.launcher import SubmissionStatus
from backend.jobs.models import JobState

SILENCE_S = 10.0  # five missed heartbeats; asking Ray is cheap and decides nothing by itself
LAST_FACTS_GRACE_S = 20.0  # of silence; a driver that ended may have left facts that are on their way
LAUNCH_OVERDUE_S = 10.0  # the outbox tries within 2 s; this is for an attempt that it does not know of
UNLAUNCHED_STOP_S = 3.0
STOP_DEADLINE_S = 20.0  # for the driver to end by itself
STOP_LAST_DEADLINE_S = 120.0  # Ray ends a process in 3 s; a node that is gone never answers
RUNTIME_GRACE_S = 30.0  # the driver watches its own runtime and is given the chance to end well


class Verdict(Enum):
    NOTHING = auto()
    LAUNCH_AGAIN = auto()
    STILL_ALIVE = auto()
    STOP_SUBMISSION = auto()
    OUT_OF_TIME = auto()
    ATTEMPT_LOST = auto()
    NEXT_ATTEMPT = auto()
    FINISH = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    state: str
    has_attempt: bool
    """One that has not ended."""
    submitted: bool
    launch_waits: bool
    """The outbox still holds its launch."""
    age_s: float
    silent_s: float
    stopping_s: float
    running_s: float
    max_runtime_s: float


def must_ask(view: JobView) -> bool:
    """Is Ray's word needed for a verdict?"""
    if not view.has_attempt:
        return False
    if view.state == JobState.STOPPING:
        patience_s = STOP_DEADLINE_S if view.submitted else UNLAUNCHED_STOP_S
        return view.stopping_s > patience_s or (view.submitted and view.silent_s > SILENCE_S)
    return view.submitted and view.silent_s > SILENCE_S


def judge(view: JobView, status: SubmissionStatus | None) -> Verdict:
    """`status` is None where Ray was not asked or did not answer."""
    if view.state == JobState.STOPPING:
        return _judge_stopping(view, status)
    if not view.has_attempt:
        return Verdict.NEXT_ATTEMPT
    if view.submitted and view.running_s > view.max_runtime_s + RUNTIME_GRACE_S:
        return Verdict.OUT_OF_TIME
    if not view.submitted:
        overdue = view.age_s > LAUNCH_OVERDUE_S and not view.launch_waits
        return Verdict.LAUNCH_AGAIN if overdue else Verdict.NOTHING
    if status is None:
        return Verdict.NOTHING
    if status.is_live:
        return Verdict.STILL_ALIVE
    return Verdict.ATTEMPT_LOST if view.silent_s > LAST_FACTS_GRACE_S else Verdict.NOTHING


def _judge_stopping(view: JobView, status: SubmissionStatus | None) -> Verdict:
    if not view.has_attempt:
        return Verdict.FINISH
    if status is None:
        return Verdict.NOTHING
    if not status.is_live:
        return Verdict.FINISH
    if view.stopping_s > STOP_LAST_DEADLINE_S:
        return Verdict.FINISH
    return Verdict.STOP_SUBMISSION if view.stopping_s > STOP_DEADLINE_S else Verdict.NOTHING
