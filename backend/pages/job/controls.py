"""What somebody may do with a job as it is now: what each act costs, doing it, and what is told at once.

Invariants:
- a control is offered to who has the right and while the job's state allows it; the service asks again when it is used;
- what would be lost is counted when the question is asked, from the job's newest checkpoint;
- what is told at once is what was asked for. What came of it is told by `acts`, from what the engine recorded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from backend.accounts.acting import Acting
from backend.jobs.attempts.ending import landing_of
from backend.jobs.attempts.resume_points import ResumePoint, resume_point
from backend.jobs.control.cancelling import MAY_KILL, cancel_job, kill_job
from backend.jobs.control.pausing import pause_job, resume_job
from backend.jobs.lifecycle import LEGAL_MOVES
from backend.jobs.models import HOLDING_STATES, Job, JobState
from backend.pages.templatetags.laminar import number

Tone = Literal["plain", "danger"]
ENGINE_ASKED: Final = "The engine was asked to. What it does is told here as it happens."


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    verb: str
    """In its address, after the job's."""
    title: str
    question: str
    keep: str
    """The way out."""
    tone: Tone = "plain"
    is_rare: bool = False
    fits: Callable[[Job], bool]
    may: Callable[[Acting], bool]
    costs: Callable[[Job], Sequence[str]]
    do: Callable[[str, str, datetime], str]
    """Of a job's id, by an actor, at a moment: what is told at once. Raises `Refusal`."""

    @property
    def page(self) -> str:
        """The name of its address."""
        return f"{self.verb}_job"


def _may_work(acting: Acting) -> bool:
    return "jobs:write" in acting.scopes


def _may_kill(acting: Acting) -> bool:
    return _may_work(acting) and acting.role in MAY_KILL


# ── when ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _can_pause(job: Job) -> bool:
    is_preempted = job.state == JobState.PAUSING and landing_of(job) != JobState.PAUSED
    return JobState.PAUSING in LEGAL_MOVES[job.state] or is_preempted


def can_cancel(job: Job) -> bool:
    moves = LEGAL_MOVES[job.state]
    return job.state != JobState.STOPPING and (JobState.CANCELLED in moves or JobState.STOPPING in moves)


# ── what it costs ─────────────────────────────────────────────────────────────────────────────────────────────────────


def since_checkpoint(job: Job) -> tuple[ResumePoint | None, int]:
    """Where it would go on, and how many steps it has done since."""
    point = resume_point(job)
    return point, max(0, job.step - (point.step if point else 0))


def steps(count: int) -> str:
    return f"{number(count)} step{'' if count == 1 else 's'}"


def _lost(job: Job, *, then: str) -> list[str]:
    """`then`: what becomes of the steps that no checkpoint holds."""
    if job.only_evaluates:
        return [f"Its {number(job.answered)} answers are not kept."] if job.answered else []
    point, count = since_checkpoint(job)
    if not count:
        return ["No step is lost." if job.step else "Nothing has been trained yet."]
    where = f"The last checkpoint is of step {number(point.step)}" if point else "No checkpoint was saved yet"
    return [f"{where}: {steps(count)} {then}."]


def _pause_costs(job: Job) -> list[str]:
    held = f"{number(job.devices)} device{'' if job.devices == 1 else 's'}"
    if job.state == JobState.PAUSING:
        return ["It is pausing for another job, and would go back into the line by itself. Now it stays paused."]
    if job.only_evaluates:
        return [f"The engine lets go of {held}; the evaluation begins again when it is resumed.", *_lost(job, then="")]
    return [
        f"The engine ends its step, saves a checkpoint and lets go of {held}.",
        *(f"Should it not be able to save: {each}" for each in _lost(job, then="are trained again") if job.step),
        "Resumed, it joins the end of its pool's line.",
    ]


def _resume_costs(job: Job) -> list[str]:
    where = f"It joins the end of the line of pool {job.pool.name}"
    if job.only_evaluates:
        return [f"{where}, and the evaluation begins again."]
    point, count = since_checkpoint(job)
    after = f"goes on after step {number(point.step)}" if point else "begins at the beginning"
    again = [f"{steps(count).capitalize()} that no checkpoint holds {'is' if count == 1 else 'are'} trained again."]
    return [f"{where} and {after}.", *(again if count else [])]


def _cancel_costs(job: Job) -> list[str]:
    if job.state not in HOLDING_STATES:
        kept = ["Metrics, events and saved checkpoints stay."] if job.num_attempts else ["Nothing has run yet."]
        return ["It leaves the line." if job.state != JobState.PAUSED else "It does not go on.", *kept, _FOR_GOOD]
    held = f"{number(job.devices)} device{'' if job.devices == 1 else 's'}"
    at = f"step {number(job.num_done)}" if job.steps else "once"
    return [
        f"The engine stops at {at} and lets go of {held}.",
        *_lost(job, then="are lost"),
        f"Metrics, events and saved checkpoints stay. {_FOR_GOOD}",
    ]


_FOR_GOOD: Final = "This cannot be undone: a retry is a new job."


def _kill_costs(job: Job) -> list[str]:
    return [
        "It ends now, without waiting for its engine: nothing is written down first.",
        *_lost(job, then="are lost"),
        "What still runs of it is shut out at once and stopped by the cluster. Until then it may use devices that "
        "another job is given, so cancel it instead if it still answers.",
        _FOR_GOOD,
    ]


# ── doing it ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _pause(job_id: str, actor: str, now: datetime) -> str:
    _, changed = pause_job(job_id, actor=actor, now=now)
    return ENGINE_ASKED if changed else "It pauses or is paused already."


def _resume(job_id: str, actor: str, now: datetime) -> str:
    _, changed = resume_job(job_id, actor=actor, now=now)
    return "It waits in line now." if changed else "It waits or runs already."


def _cancel(job_id: str, actor: str, now: datetime) -> str:
    job, changed = cancel_job(job_id, actor=actor, now=now)
    if job.state == JobState.CANCELLED:
        return "The job is cancelled." if changed else "It was cancelled already."
    return ENGINE_ASKED if changed else "It stops already."


def _kill(job_id: str, actor: str, now: datetime) -> str:
    job, changed = kill_job(job_id, actor=actor, now=now)
    return f"The job is {job.state}. What the cluster does is told here." if changed else "It was over already."


PAUSE: Final = Control(
    verb="pause",
    title="Pause",
    question="Pause this job?",
    keep="Let it run",
    fits=_can_pause,
    may=_may_work,
    costs=_pause_costs,
    do=_pause,
)
RESUME: Final = Control(
    verb="resume",
    title="Resume",
    question="Resume this job?",
    keep="Leave it paused",
    fits=lambda job: job.state == JobState.PAUSED,
    may=_may_work,
    costs=_resume_costs,
    do=_resume,
)
CANCEL: Final = Control(
    verb="cancel",
    title="Cancel job",
    question="Cancel this job?",
    keep="Keep it",
    tone="danger",
    fits=can_cancel,
    may=_may_work,
    costs=_cancel_costs,
    do=_cancel,
)
KILL: Final = Control(
    verb="kill",
    title="Kill job",
    question="Kill this job?",
    keep="Keep it",
    tone="danger",
    is_rare=True,
    fits=lambda job: job.state in HOLDING_STATES,
    may=_may_kill,
    costs=_kill_costs,
    do=_kill,
)
CONTROLS: Final = (PAUSE, RESUME, CANCEL, KILL)


def controls_of(job: Job, acting: Acting) -> list[Control]:
    return [each for each in CONTROLS if each.may(acting) and each.fits(job)]
