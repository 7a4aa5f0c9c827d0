"""Judges one job by its row in Postgres and by Ray's answer. Pure: seconds in, one action out.

Invariants:
- silence alone never ends an attempt. It ends if Ray reports the submission as ended, after a grace for its last facts;
  or if its driver's loop is stuck although the driver could reach the site (`listening`);
- the grace counts only seconds in which facts could arrive; an unreachable site extends it, up to a limit;
- a loop turns all the time, whatever a step takes: stuck is not the same as slow;
- without an answer from Ray nothing is failed, relaunched or released;
- a stopping or pausing job keeps its devices until Ray reports the end of its submission, or the last deadline passes;
- a start that takes too long releases its devices, also only once Ray reports the end of its submission.

                       driver sends ──▶ nothing to do
  silent > 10 s ──▶ ask Ray ──▶ pending, running ──▶ StillAlive
                            └──▶ ended, unknown ──▶ unheard > 20 s ──▶ AttemptLost  (or silent > 120 s)
  loop stuck > 60 s ▶ ask Ray ─▶ pending, running ──▶ Stalled; loop turns ──▶ MovesAgain
                            └──▶ stuck > 300 s ──▶ EndStalled (> 420 s: AttemptLost)  (plus the size's extra)
  stopping > 20 s ─▶ ask Ray ──▶ pending, running ──▶ StopSubmission (> 120 s: Finish)
                            └──▶ ended, unknown ──▶ Finish
  pausing > 300 s ──▶ as stopping, with time for a checkpoint; LandPause for Finish    (plus the size's extra)
  starting > 900 s ─▶ ask Ray ──▶ pending, running ──▶ StopSubmission
                            └──▶ ended, unknown ──▶ StartFailed
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto

from backend.jobs.attempts.launcher import SubmissionStatus
from backend.jobs.models import JobState

SILENCE_S = 10.0  # five missed heartbeats; querying Ray is cheap and decides nothing by itself
LAST_FACTS_GRACE_S = 20.0  # while reachable; facts of an ended driver may still be on their way
LAST_FACTS_LAST_DEADLINE_S = 120.0  # in any case: an unreachable web server does not block the next attempt
LAUNCH_OVERDUE_S = 10.0  # the outbox tries within 2 s; this is for an attempt without an outbox row
UNLAUNCHED_STOP_S = 3.0
STOP_DEADLINE_S = 20.0  # for the driver to end by itself
STOP_LAST_DEADLINE_S = 120.0  # Ray ends a process in 3 s; a lost node never answers
PAUSE_DEADLINE_S = 300.0  # for the running step and its checkpoint
PAUSE_LAST_DEADLINE_S = 420.0
STALLED_AFTER_S = 60.0  # thirty heartbeats without a turn; time to inform the user
STALL_DEADLINE_S = 300.0  # the engine's limit for its longest silent work, the start of a part
STALL_LAST_DEADLINE_S = 420.0
START_DEADLINE_S = 900.0  # the engine allows 300 s for placement and as much for a small model
# The driver enforces its own runtime, by a clock that cannot be set: a driver that moves is trusted.
RUNTIME_GRACE_S = 30.0


TURNING_STATES = frozenset({JobState.RUNNING, JobState.RECOVERING})


class Action(Enum):
    NOTHING = auto()
    LAUNCH_AGAIN = auto()
    STILL_ALIVE = auto()
    STOP_SUBMISSION = auto()
    OUT_OF_TIME = auto()
    STALLED = auto()
    MOVES_AGAIN = auto()
    END_STALLED = auto()
    ATTEMPT_LOST = auto()
    NEXT_ATTEMPT = auto()
    FINISH = auto()
    LAND_PAUSE = auto()
    START_FAILED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    state: str
    has_attempt: bool
    """An attempt that has not ended."""
    submitted: bool
    launch_waits: bool
    """The outbox still holds its launch."""
    age_s: float
    silent_s: float
    unheard_s: float
    """The last part of its silence in which drivers could reach the site without a break."""
    in_state_s: float
    """Since the job entered this state."""
    submitted_s: float
    running_s: float
    max_runtime_s: float
    size_extra_s: float = 0.0
    """Extra time by the job's size, added to the deadline of its start, pause or stall."""
    still_s: float = 0.0
    """Since the driver's loop last turned, while the site was reachable."""
    is_stalled: bool = False
    """Already reported as stalled."""
    moves_again: bool = False
    """The loop has turned since the stall was reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Deadlines of a job that is stopping or pausing."""

    own_s: float
    """For the driver to end by itself."""
    last_s: float
    action: Action


_LEAVING: Mapping[str, Deadlines] = {
    JobState.STOPPING: Deadlines(own_s=STOP_DEADLINE_S, last_s=STOP_LAST_DEADLINE_S, action=Action.FINISH),
    JobState.PAUSING: Deadlines(own_s=PAUSE_DEADLINE_S, last_s=PAUSE_LAST_DEADLINE_S, action=Action.LAND_PAUSE),
}


def is_past_base_deadline(view: JobView) -> bool:
    """A start, pause or stall beyond its base deadline, so that the job's size matters."""
    if view.state == JobState.PAUSING:
        return view.submitted and view.in_state_s > PAUSE_DEADLINE_S
    return _starts_too_long(view) or is_stuck(view, STALL_DEADLINE_S)


def is_stuck(view: JobView, longest_s: float) -> bool:
    return view.state in TURNING_STATES and view.submitted and view.still_s > longest_s + view.size_extra_s


def needs_ray_status(view: JobView) -> bool:
    """True if an action needs Ray's answer."""
    if not view.has_attempt:
        return False
    deadlines = _deadlines(view)
    if deadlines is not None:
        patience_s = deadlines.own_s if view.submitted else UNLAUNCHED_STOP_S
        return view.in_state_s > patience_s or (view.submitted and view.silent_s > SILENCE_S)
    doubts = view.silent_s > SILENCE_S or view.still_s > STALLED_AFTER_S
    return view.submitted and (doubts or _starts_too_long(view))


def judge(view: JobView, status: SubmissionStatus | None) -> Action:
    """`status` is None if Ray was not queried or did not answer."""
    deadlines = _deadlines(view)
    if deadlines is not None:
        return _judge_leaving(view, status, deadlines)
    if not view.has_attempt:
        return Action.NEXT_ATTEMPT
    is_overdue = view.running_s > view.max_runtime_s + RUNTIME_GRACE_S
    if view.submitted and is_overdue and view.still_s > RUNTIME_GRACE_S:
        return Action.OUT_OF_TIME
    if not view.submitted:
        overdue = view.age_s > LAUNCH_OVERDUE_S and not view.launch_waits
        return Action.LAUNCH_AGAIN if overdue else Action.NOTHING
    if view.moves_again:
        return Action.MOVES_AGAIN
    if status is None:
        return Action.NOTHING
    if _starts_too_long(view):
        return Action.STOP_SUBMISSION if status.is_live else Action.START_FAILED
    if status.is_live:
        return _judge_live(view)
    is_settled = _is_beyond_grace(view) or is_stuck(view, STALL_DEADLINE_S)
    return Action.ATTEMPT_LOST if is_settled else Action.NOTHING


def _is_beyond_grace(view: JobView) -> bool:
    return view.unheard_s > LAST_FACTS_GRACE_S or view.silent_s > LAST_FACTS_LAST_DEADLINE_S


def _judge_live(view: JobView) -> Action:
    if is_stuck(view, STALL_DEADLINE_S):
        return Action.ATTEMPT_LOST if is_stuck(view, STALL_LAST_DEADLINE_S) else Action.END_STALLED
    if is_stuck(view, STALLED_AFTER_S) and not view.is_stalled:
        return Action.STALLED
    return Action.STILL_ALIVE if view.silent_s > SILENCE_S else Action.NOTHING


def _deadlines(view: JobView) -> Deadlines | None:
    deadlines = _LEAVING.get(view.state)
    if deadlines is None or not view.size_extra_s:
        return deadlines
    more_s = view.size_extra_s
    return replace(deadlines, own_s=deadlines.own_s + more_s, last_s=deadlines.last_s + more_s)


def _starts_too_long(view: JobView) -> bool:
    longest_s = START_DEADLINE_S + view.size_extra_s
    return view.state == JobState.STARTING and view.submitted and view.submitted_s > longest_s


def _judge_leaving(view: JobView, status: SubmissionStatus | None, deadlines: Deadlines) -> Action:
    if not view.has_attempt:
        return deadlines.action
    if status is None:
        return Action.NOTHING
    if not status.is_live:
        is_settled = view.state == JobState.STOPPING or _is_beyond_grace(view) or not view.submitted
        return deadlines.action if is_settled else Action.NOTHING
    if view.in_state_s > deadlines.last_s:
        return deadlines.action
    return Action.STOP_SUBMISSION if view.in_state_s > deadlines.own_s else Action.NOTHING
