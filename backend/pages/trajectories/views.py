"""The page of one trajectory: its messages, tokens, and the other samples of its group.

Invariants:
- a trajectory of another team or job gives the same 404 as one that does not exist;
- a partly stored trajectory is shown as far as possible, with a note on what is missing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from backend.errors import Refusal
from backend.jobs.models import Job
from backend.pages import curl
from backend.pages.job.control_views import job_acted_on
from backend.pages.trajectories.asked import Asked
from backend.pages.trajectories.reading import ShownSample, shown_samples
from backend.pages.trajectories.sought import Sought
from backend.pages.trajectories.tokens import COLOURINGS, tokens_of
from backend.pages.trajectories.turns import turns_of
from backend.store.chosen import store
from backend.telemetry.removal import Removed, refuse_if_trajectories_are_removed
from backend.telemetry.representations import TrajectoryOut
from backend.telemetry.trajectories.groups import samples_of_group
from backend.telemetry.trajectories.search import the_trajectory, whole_of
from engine.spec.facts import TrajectorySample

_MODULES: Final = ("lib/format", "pages/trajectories/colouring", "pages/trajectories/tokens")
"""Modules of the page's script, for preloading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """The stored samples of the same question, by number."""

    samples: Sequence[ShownSample]
    at: int

    @property
    def before(self) -> ShownSample | None:
        return self.samples[self.at - 1] if self.at else None

    @property
    def behind(self) -> ShownSample | None:
        return self.samples[self.at + 1] if self.at + 1 < len(self.samples) else None


@require_safe
@never_cache
@login_required
def trajectory(request: HttpRequest, job_id: str, trajectory_id: str) -> HttpResponse:
    """With ?part=turns only its messages, for a list of samples."""
    job, _ = job_acted_on(request, job_id)
    try:
        refuse_if_trajectories_are_removed(job)
        row = the_trajectory(job, trajectory_id)
    except Removed:
        return redirect("job_trajectories", job_id=job.pk)  # the tab shows when it was removed
    except Refusal as refusal:
        raise Http404(refusal.detail) from None
    it = TrajectoryOut.of(row)
    try:
        whole, missing = whole_of(row, store()), ""
    except Refusal as refusal:
        whole, missing = _beginning_of(it), refusal.detail
    if request.GET.get("part") == "turns":
        context = {"job": job, "it": it, "sample": whole, "turns": turns_of(whole), "missing": missing}
        return render(request, "pages/job/trajectories/_opened.html", context)
    context = _content(job, it, whole, Asked.of(request.GET).sought) | {
        "missing": missing,
        "colour": _colour(request.GET.get("colour", "")),
        "modules": _MODULES,
    }
    return render(request, "pages/job/trajectories/trajectory.html", context)


def _content(job: Job, it: TrajectoryOut, whole: TrajectorySample, sought: Sought) -> dict[str, Any]:
    tokens = tokens_of(whole.trace, whole.advantage)
    turns = turns_of(whole, tokens.shown if tokens else (), sought)
    neighbours = _neighbours(job, it)
    return {
        "job": job,
        "it": it,
        "shown": neighbours.samples[neighbours.at],
        "neighbours": neighbours,
        "sample": whole,
        "tokens": tokens,
        "num_not_stored": max(0, whole.num_tokens - len(tokens.shown)) if tokens else 0,
        "turns": turns,
        "sought": sought,
        "asked_pieces": sought.pieces(whole.prompt),
        "is_in_question": bool(sought.spans(whole.prompt)),
        "places": [each for each in turns if each.place],
        "curl": curl.get(f"/jobs/{job.pk}/trajectories/{it.trajectory_id}"),
    }


def _neighbours(job: Job, it: TrajectoryOut) -> Neighbours:
    samples = [TrajectoryOut.of(row) for row in samples_of_group(job, it.step, it.prompt_ordinal)]
    of_attempt = [each for each in samples if each.attempt == it.attempt] or [it]
    at = next(at for at, each in enumerate(of_attempt) if each.trajectory_id == it.trajectory_id)
    return Neighbours(samples=shown_samples(of_attempt), at=at)


def _beginning_of(it: TrajectoryOut) -> TrajectorySample:
    """The part that the list of trajectories has."""
    known = it.model_dump(include=set(TrajectorySample.model_fields))
    return TrajectorySample.model_construct(**known)


def _colour(asked: str) -> str:
    return asked if asked in {each.slug for each in COLOURINGS} else COLOURINGS[0].slug
