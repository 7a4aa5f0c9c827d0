"""Bulk actions on jobs: the same as for a single job, by the same services.

Invariants:
- state and permission are checked for each job: one that fails the check is skipped and listed with the reason, and
  does not stop the others;
- the confirmation counts what would be lost, for each job and in total.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.http import HttpRequest

from backend.accounts.acting import Acting
from backend.jobs.models import HOLDING_STATES, Job
from backend.jobs.submitting.retrying import retry_job
from backend.jobs.submitting.submit import Submitter
from backend.pages import words
from backend.pages.job.controls import CANCEL, PAUSE, RESUME, Control, Tone, since_checkpoint, steps
from backend.pages.job.making import made_once
from backend.pages.job.retry_views import beginnings_of
from backend.pages.templatetags.laminar import number
from backend.pages.undoing import Done

MOST_AT_ONCE: Final = 100  # the limit of REST's bulk call


@dataclass(frozen=True, slots=True, kw_only=True)
class SeveralAct:
    verb: str
    title: str
    keep: str
    """The label of the button that changes nothing."""
    tone: Tone
    fits: Callable[[Job], bool]
    may: Callable[[Acting], bool]
    costs: Callable[[Job], Sequence[str]]
    do: Callable[[HttpRequest, Job, Acting, datetime], str]
    """Returns the message for the user. Raises `Refusal`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    job: Job
    costs: Sequence[str]
    hindrance: str
    """Why the job is skipped; empty: it is not."""


def _by(control: Control, *, title: str, keep: str) -> SeveralAct:
    return SeveralAct(
        verb=control.verb,
        title=title,
        keep=keep,
        tone=control.tone,
        fits=control.fits,
        may=control.may,
        costs=control.costs,
        do=lambda request, job, acting, now: _message_of(control.do(job.pk, acting.name, now)),
    )


def _message_of(done: Done | str) -> str:
    """An action on many jobs has no Undo."""
    return done.message if isinstance(done, Done) else done


def _retry_costs(job: Job) -> list[str]:
    first = beginnings_of(job)[0]
    return [f"A new job starts from {first.label}{f': {first.cost}' if first.cost else ''}."]


def _retry(request: HttpRequest, job: Job, acting: Acting, now: datetime) -> str:
    by = Submitter(user=acting.user, key=None)
    made_once(
        request,
        lambda: retry_job(job, start_from=None, changes={}, by=by, now=now),
        team_id=job.team_id,
        now=now,
        of=job.pk,
    )
    return "Retry submitted."


RETRY: Final = SeveralAct(
    verb="retry",
    title="Retry",
    keep="Cancel",
    tone="plain",
    fits=lambda job: job.is_terminal,
    may=lambda acting: "jobs:write" in acting.scopes,
    costs=_retry_costs,
    do=_retry,
)
SEVERAL: Final = (
    _by(PAUSE, title="Pause", keep="Keep running"),
    _by(RESUME, title="Resume", keep="Keep paused"),
    RETRY,
    _by(CANCEL, title="Cancel", keep="Keep jobs"),
)


def chosen_of(act: SeveralAct, jobs: Sequence[Job], acting: Callable[[Job], Acting | None]) -> list[Chosen]:
    chosen = []
    for job in jobs:
        who = acting(job)
        hindrance = hindrance_of(act, job, who)
        chosen.append(Chosen(job=job, costs=() if hindrance else act.costs(job), hindrance=hindrance))
    return chosen


def hindrance_of(act: SeveralAct, job: Job, who: Acting | None) -> str:
    """Why the action is not possible for this job; empty: it is."""
    if who is None or not act.may(who):
        return f"You do not have permission to {act.verb} this job."
    how = words.STATE_MEANING.get(job.state, f"is {job.state}")
    return "" if act.fits(job) else f"The job {how}, so you cannot {act.verb} it."


def lost_together(act: SeveralAct, chosen: Sequence[Chosen]) -> Iterator[str]:
    """Sentences about all jobs for which the action is possible."""
    jobs = [each.job for each in chosen if not each.hindrance]
    held = sum(job.devices for job in jobs if job.state in HOLDING_STATES)
    if act.verb in ("pause", "cancel") and held:
        yield f"They release {number(held)} device{'' if held == 1 else 's'}."
    if act.verb == "cancel":
        losses = [(job, since_checkpoint(job)[1]) for job in jobs if not job.only_evaluates]
        losing = [count for _, count in losses if count]
        if losing:
            whole = f"{number(len(losing))} of them lose" if len(losing) > 1 else "One of them loses"
            yield f"{whole} steps since the last checkpoint: {steps(sum(losing))} in total."
        answered = sum(job.answered for job in jobs if job.only_evaluates)
        if answered:
            yield f"{number(answered)} answers of evaluations are lost."
        yield "Metrics, events and saved checkpoints are kept. This cannot be undone. A retry is a new job."
    if act.verb == "retry":
        yield "Each retry is a new job in the queue. The old jobs do not change."
