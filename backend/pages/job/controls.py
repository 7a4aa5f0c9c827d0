"""The actions that a job's current state allows: the cost of each, its execution, and the message afterwards.

Invariants:
- a control is offered to users with the permission while the job's state allows it; the service checks both again;
- the confirmation counts what would be lost since the job's newest checkpoint;
- the message only states what was requested. `acts` shows the outcome, from what the engine recorded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from django.urls import reverse

from backend.accounts.acting import Acting
from backend.jobs.attempts.ending import state_after_pause
from backend.jobs.attempts.resume_points import ResumePoint, resume_point
from backend.jobs.control.cancelling import MAY_KILL, cancel_job, kill_job
from backend.jobs.control.pausing import pause_job, resume_job
from backend.jobs.lifecycle import LEGAL_MOVES
from backend.jobs.models import HOLDING_STATES, Job, JobState
from backend.pages.templatetags.laminar import number
from backend.pages.undoing import Done, UndoForm

Tone = Literal["plain", "danger"]
ENGINE_ASKED: Final = "Request sent to the engine. Progress appears on the job's page."


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    verb: str
    """The last part of its URL path."""
    title: str
    question: str
    keep: str
    """The label of the button that changes nothing."""
    tone: Tone = "plain"
    is_rare: bool = False
    fits: Callable[[Job], bool]
    may: Callable[[Acting], bool]
    costs: Callable[[Job], Sequence[str]]
    do: Callable[[str, str, datetime], Done | str]
    """(job id, actor, now) → the message for the user. Raises `Refusal`."""

    @property
    def page(self) -> str:
        """The URL name of its page."""
        return f"{self.verb}_job"


def _may_work(acting: Acting) -> bool:
    return "jobs:write" in acting.scopes


def _may_kill(acting: Acting) -> bool:
    return _may_work(acting) and acting.role in MAY_KILL


# ── conditions ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _can_pause(job: Job) -> bool:
    comes_back = job.state == JobState.PAUSING and state_after_pause(job) != JobState.PAUSED
    return JobState.PAUSING in LEGAL_MOVES[job.state] or comes_back


def _can_resume(job: Job) -> bool:
    is_pausing = job.state == JobState.PAUSING and state_after_pause(job) == JobState.PAUSED
    return job.state == JobState.PAUSED or is_pausing


def can_cancel(job: Job) -> bool:
    moves = LEGAL_MOVES[job.state]
    return job.state != JobState.STOPPING and (JobState.CANCELLED in moves or JobState.STOPPING in moves)


# ── costs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def since_checkpoint(job: Job) -> tuple[ResumePoint | None, int]:
    """Where the job would resume, and how many steps it has done since."""
    point = resume_point(job)
    return point, max(0, job.step - (point.step if point else 0))


def steps(count: int) -> str:
    return f"{number(count)} step{'' if count == 1 else 's'}"


def _lost(job: Job, *, then: str) -> list[str]:
    """`then`: the fate of the steps since the last checkpoint."""
    if job.only_evaluates:
        return [f"Its {number(job.answered)} answers are lost."] if job.answered else []
    point, count = since_checkpoint(job)
    if not count:
        return ["No steps are lost." if job.step else "Nothing has been trained yet."]
    where = f"The last checkpoint is of step {number(point.step)}" if point else "No checkpoint has been saved"
    return [f"{where}: {steps(count)} {then}."]


def _pause_costs(job: Job) -> list[str]:
    held = f"{number(job.devices)} device{'' if job.devices == 1 else 's'}"
    if job.state == JobState.PAUSING:
        return ["The job is about to return to the queue. If you pause it, it stays paused."]
    if job.only_evaluates:
        return [f"The engine releases {held}. The evaluation restarts when you resume it.", *_lost(job, then="")]
    point, count = since_checkpoint(job)
    after = f"resumes after step {number(point.step)}" if point else "starts from the beginning"
    return [
        f"The engine finishes its step, saves a checkpoint and releases {held}.",
        *([f"If it cannot save, the job {after} and trains {steps(count)} again."] if count else []),
        "When you resume it, it goes to the end of its pool's queue.",
    ]


def _resume_costs(job: Job) -> list[str]:
    if job.state == JobState.PAUSING:
        return ["The pause completes first. Then the job returns to its place in the queue and resumes by itself."]
    where = f"The job goes to the end of the queue of pool {job.pool.name}"
    if job.only_evaluates:
        return [f"{where}, and the evaluation restarts."]
    point, count = since_checkpoint(job)
    after = f"continues after step {number(point.step)}" if point else "starts from the beginning"
    again = [f"{steps(count).capitalize()} without a checkpoint {'is' if count == 1 else 'are'} trained again."]
    return [f"{where} and {after}.", *(again if count else [])]


def _cancel_costs(job: Job) -> list[str]:
    if job.state not in HOLDING_STATES:
        kept = ["Metrics, events and saved checkpoints are kept."] if job.num_attempts else ["Nothing has run yet."]
        return ["It leaves the queue." if job.state != JobState.PAUSED else "It will not resume.", *kept, _FOR_GOOD]
    held = f"{number(job.devices)} device{'' if job.devices == 1 else 's'}"
    at = f" at step {number(job.num_done)}" if job.steps else ""
    return [
        f"The engine stops{at} and releases {held}.",
        *_lost(job, then="are lost"),
        f"Metrics, events and saved checkpoints are kept. {_FOR_GOOD}",
    ]


_FOR_GOOD: Final = "This cannot be undone. A retry is a new job."


def _kill_costs(job: Job) -> list[str]:
    return [
        "The job ends at once, without waiting for its engine or saving anything.",
        *_lost(job, then="are lost"),
        "Its remaining processes are fenced off and then stopped by the cluster. Until then they may use devices of "
        "another job, so cancel instead if the job still responds.",
        _FOR_GOOD,
    ]


# ── execution ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _pause(job_id: str, actor: str, now: datetime) -> Done:
    """Undo resumes the job, also while it is pausing."""
    _, changed = pause_job(job_id, actor=actor, now=now)
    if not changed:
        return Done("The job is already pausing or paused.")
    return Done(ENGINE_ASKED, UndoForm(address=reverse(RESUME.page, args=[job_id])))


def _resume(job_id: str, actor: str, now: datetime) -> str:
    job, changed = resume_job(job_id, actor=actor, now=now)
    if job.state == JobState.PAUSING:
        return "The job resumes by itself when its pause has completed."
    return "The job is in the queue." if changed else "The job is already queued or running."


def _cancel(job_id: str, actor: str, now: datetime) -> str:
    job, changed = cancel_job(job_id, actor=actor, now=now)
    if job.state == JobState.CANCELLED:
        return "The job is cancelled." if changed else "The job was already cancelled."
    return ENGINE_ASKED if changed else "The job is already stopping."


def _kill(job_id: str, actor: str, now: datetime) -> str:
    job, changed = kill_job(job_id, actor=actor, now=now)
    return f"The job is {job.state}. Progress on the cluster appears here." if changed else "The job had already ended."


PAUSE: Final = Control(
    verb="pause",
    title="Pause",
    question="Pause this job?",
    keep="Keep running",
    fits=_can_pause,
    may=_may_work,
    costs=_pause_costs,
    do=_pause,
)
RESUME: Final = Control(
    verb="resume",
    title="Resume",
    question="Resume this job?",
    keep="Keep paused",
    fits=_can_resume,
    may=_may_work,
    costs=_resume_costs,
    do=_resume,
)
CANCEL: Final = Control(
    verb="cancel",
    title="Cancel job",
    question="Cancel this job?",
    keep="Keep job",
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
    keep="Keep job",
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
