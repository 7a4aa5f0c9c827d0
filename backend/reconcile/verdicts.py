"""The verdict on one job, from Postgres' row and Ray's answer. Pure: seconds in, one verdict out.

Invariants:
- losing sight of a job is never its death: Ray's own word that the submission is over ends an attempt, after a grace in
  which its last facts may still arrive; or its driver's loop stands still, though it could be heard (`listening`);
- the grace is seconds in which facts could be heard; a door that stays closed lengthens it, and not for ever;
- a loop turns all the while, whatever a step takes: standing still is not being slow;
- without an answer of Ray's nothing is failed, relaunched or let go;
- a job that stops or pauses keeps its devices until Ray says that its submission is over, or the last deadline passed;
- a start that takes too long gives its devices back, also only once Ray says that its submission is over.

                       driver speaks ──▶ nothing to do
  silent > 10 s ──▶ ask Ray ──▶ pending, running ──▶ StillAlive
                            └──▶ over, unknown ──▶ unheard > 20 s ──▶ AttemptLost  (silent > 120 s: all the same)
  loop still > 60 s ▶ ask Ray ──▶ pending, running ──▶ Stalled; it turns again ──▶ MovesAgain
                            └──▶ still > 300 s ──▶ EndStalled (> 420 s: AttemptLost all the same)  (and what size adds)
  stopping > 20 s ─▶ ask Ray ──▶ pending, running ──▶ StopSubmission (> 120 s: Finish all the same)
                            └──▶ over, unknown ──▶ Finish
  pausing > 300 s ──▶ as stopping, with more time for a checkpoint, and LandPause for Finish    (and what its size adds)
  starting > 900 s ─▶ ask Ray ──▶ pending, running ──▶ StopSubmission
                            └──▶ over, unknown ──▶ StartFailed
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto

from backend.jobs.attempts.launcher import SubmissionStatus
from backend.jobs.models import JobState

SILENCE_S = 10.0  # five missed heartbeats; asking Ray is cheap and decides nothing by itself
LAST_FACTS_GRACE_S = 20.0  # of silence that could be heard; a driver that ended may have left facts on their way
LAST_FACTS_LAST_DEADLINE_S = 120.0  # of any silence: a web server that is away keeps no job from its next attempt
LAUNCH_OVERDUE_S = 10.0  # the outbox tries within 2 s; this is for an attempt that it does not know of
UNLAUNCHED_STOP_S = 3.0
STOP_DEADLINE_S = 20.0  # for the driver to end by itself
STOP_LAST_DEADLINE_S = 120.0  # Ray ends a process in 3 s; a node that is gone never answers
PAUSE_DEADLINE_S = 300.0  # for the step that runs, and its checkpoint
PAUSE_LAST_DEADLINE_S = 420.0
STALLED_AFTER_S = 60.0  # thirty heartbeats that tell of no turn; by then a person may want to know
STALL_DEADLINE_S = 300.0  # as long as the engine gives its longest silent piece of work, the start of a part
STALL_LAST_DEADLINE_S = 420.0
START_DEADLINE_S = 900.0  # the engine gives placement 300 s and a small model as much; beyond that it hangs
# The driver watches its own runtime, by a clock that nobody sets: one that moves is believed.
RUNTIME_GRACE_S = 30.0


TURNING_STATES = frozenset({JobState.RUNNING, JobState.RECOVERING})


class Verdict(Enum):
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
    """One that has not ended."""
    submitted: bool
    launch_waits: bool
    """The outbox still holds its launch."""
    age_s: float
    silent_s: float
    unheard_s: float
    """Of its silence, the last stretch in which drivers could be heard without a break."""
    in_state_s: float
    """Since it came into this state."""
    submitted_s: float
    running_s: float
    max_runtime_s: float
    size_adds_s: float = 0.0
    """To the deadline of its start, of its pause, or of its standing still."""
    still_s: float = 0.0
    """Its driver's loop, while somebody listened."""
    is_stalled: bool = False
    """So it was said before."""
    moves_again: bool = False
    """Since that was said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Deadlines of a job that is on its way out."""

    own_s: float
    """For the driver to end by itself."""
    last_s: float
    verdict: Verdict


_ON_THE_WAY_OUT: Mapping[str, Deadlines] = {
    JobState.STOPPING: Deadlines(own_s=STOP_DEADLINE_S, last_s=STOP_LAST_DEADLINE_S, verdict=Verdict.FINISH),
    JobState.PAUSING: Deadlines(own_s=PAUSE_DEADLINE_S, last_s=PAUSE_LAST_DEADLINE_S, verdict=Verdict.LAND_PAUSE),
}


def is_past_its_floor(view: JobView) -> bool:
    """A start, a pause or a standstill, to which the job's size may add."""
    if view.state == JobState.PAUSING:
        return view.submitted and view.in_state_s > PAUSE_DEADLINE_S
    return _starts_too_long(view) or stands_still(view, STALL_DEADLINE_S)


def stands_still(view: JobView, longest_s: float) -> bool:
    return view.state in TURNING_STATES and view.submitted and view.still_s > longest_s + view.size_adds_s


def must_ask(view: JobView) -> bool:
    """Is Ray's word needed for a verdict?"""
    if not view.has_attempt:
        return False
    deadlines = _deadlines(view)
    if deadlines is not None:
        patience_s = deadlines.own_s if view.submitted else UNLAUNCHED_STOP_S
        return view.in_state_s > patience_s or (view.submitted and view.silent_s > SILENCE_S)
    doubts = view.silent_s > SILENCE_S or view.still_s > STALLED_AFTER_S
    return view.submitted and (doubts or _starts_too_long(view))


def judge(view: JobView, status: SubmissionStatus | None) -> Verdict:
    """`status` is None where Ray was not asked or did not answer."""
    deadlines = _deadlines(view)
    if deadlines is not None:
        return _judge_going(view, status, deadlines)
    if not view.has_attempt:
        return Verdict.NEXT_ATTEMPT
    is_overdue = view.running_s > view.max_runtime_s + RUNTIME_GRACE_S
    if view.submitted and is_overdue and view.still_s > RUNTIME_GRACE_S:
        return Verdict.OUT_OF_TIME
    if not view.submitted:
        overdue = view.age_s > LAUNCH_OVERDUE_S and not view.launch_waits
        return Verdict.LAUNCH_AGAIN if overdue else Verdict.NOTHING
    if view.moves_again:
        return Verdict.MOVES_AGAIN
    if status is None:
        return Verdict.NOTHING
    if _starts_too_long(view):
        return Verdict.STOP_SUBMISSION if status.is_live else Verdict.START_FAILED
    if status.is_live:
        return _judge_live(view)
    is_settled = _can_no_more_be_heard(view) or stands_still(view, STALL_DEADLINE_S)
    return Verdict.ATTEMPT_LOST if is_settled else Verdict.NOTHING


def _can_no_more_be_heard(view: JobView) -> bool:
    return view.unheard_s > LAST_FACTS_GRACE_S or view.silent_s > LAST_FACTS_LAST_DEADLINE_S


def _judge_live(view: JobView) -> Verdict:
    if stands_still(view, STALL_DEADLINE_S):
        return Verdict.ATTEMPT_LOST if stands_still(view, STALL_LAST_DEADLINE_S) else Verdict.END_STALLED
    if stands_still(view, STALLED_AFTER_S) and not view.is_stalled:
        return Verdict.STALLED
    return Verdict.STILL_ALIVE if view.silent_s > SILENCE_S else Verdict.NOTHING


def _deadlines(view: JobView) -> Deadlines | None:
    deadlines = _ON_THE_WAY_OUT.get(view.state)
    if deadlines is None or not view.size_adds_s:
        return deadlines
    more_s = view.size_adds_s
    return replace(deadlines, own_s=deadlines.own_s + more_s, last_s=deadlines.last_s + more_s)


def _starts_too_long(view: JobView) -> bool:
    longest_s = START_DEADLINE_S + view.size_adds_s
    return view.state == JobState.STARTING and view.submitted and view.submitted_s > longest_s


def _judge_going(view: JobView, status: SubmissionStatus | None, deadlines: Deadlines) -> Verdict:
    if not view.has_attempt:
        return deadlines.verdict
    if status is None:
        return Verdict.NOTHING
    if not status.is_live:
        is_settled = view.state == JobState.STOPPING or _can_no_more_be_heard(view) or not view.submitted
        return deadlines.verdict if is_settled else Verdict.NOTHING
    if view.in_state_s > deadlines.last_s:
        return deadlines.verdict
    return Verdict.STOP_SUBMISSION if view.in_state_s > deadlines.own_s else Verdict.NOTHING
