"""The tiles of a job's page: the text and tone of each. The initial page and its pulls use the same rules; the script
only inserts the texts and advances the clock.

Invariants:
- a page that has been open for a day and one that was just loaded show the same;
- the cost is one database query, and one more for a job from a checkpoint, however long the job ran: an open page pulls
  several times a second.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final, Literal

from pydantic import BaseModel

from backend.jobs.models import Job, JobState
from backend.jobs.selectors import starting_steps
from backend.pages.job.panels.charts import (
    HELD_OUT,
    HELD_OUT_ERROR,
    PASSED,
    PASSED_ERROR,
    REWARD,
    SEGMENTS,
    STEP_S,
    UNTRUSTED,
)
from backend.pages.templatetags.laminar import change, day, number, reward, share, span
from backend.telemetry.series.drawing import Ends, ends_of_series

PACE_OVER_STEPS: Final = 20  # short enough to follow a change of speed, long enough to be stable
MIN_STEPS_TO_PREDICT: Final = 3
MIN_ANSWERED_TO_PREDICT: Final = 0.1  # share of all prompts: short answers finish first

Tone = Literal["plain", "good", "bad", "ill"]
"""`ill`: the run has an alarm, whatever the number."""


class HeldOut(BaseModel):
    """Scores on held-out prompts. An evaluation has only `first`."""

    first: str
    last: str = ""
    change: str = ""
    words: str
    tone: Tone = "plain"


class Tiles(BaseModel):
    title: str
    """The title of the browser window."""
    done: str
    num_done: int
    elapsed: str
    elapsed_s: float | None
    is_ticking: bool
    left: str
    reward: str
    reward_text: str
    no_metric: str
    """The text shown when there are no metrics."""
    held_out: HeldOut


def tiles_of(job: Job, *, now: datetime) -> Tiles:
    ends = ends_of_series(
        job,
        (REWARD, UNTRUSTED, SEGMENTS, HELD_OUT, HELD_OUT_ERROR, PASSED, PASSED_ERROR, STEP_S),
        num_last=PACE_OVER_STEPS,
    )
    elapsed = elapsed_of(job, now=now)
    counts = f"{number(job.num_done)}/{number(job.num_to_do)}"
    return Tiles(
        title=f"{counts if job.num_done and not job.is_terminal else job.state} · {job.name}",
        done=number(job.num_done),
        num_done=job.num_done,
        elapsed=span(elapsed),
        elapsed_s=elapsed.total_seconds() if elapsed is not None else None,
        is_ticking=elapsed is not None and not job.is_terminal,
        left=_left(job, ends.get(STEP_S), now=now),
        reward=reward(_newest(ends.get(REWARD))),
        reward_text=_reward_text(_newest(ends.get(UNTRUSTED)), _newest(ends.get(SEGMENTS))),
        no_metric="No metrics were reported." if job.is_terminal else "No metrics yet.",
        held_out=_evaluation(job, ends) if job.only_evaluates else _held_out(job, ends),
    )


def elapsed_of(job: Job, *, now: datetime) -> timedelta | None:
    return (job.finished_at or now) - job.started_at if job.started_at else None


def time_left(job: Job, step_s: Ends | None, *, now: datetime) -> timedelta | None:
    """From the pace of the last steps, or of all answers. None while there are too few, and while the job makes no
    progress, such as when it is paused or waits."""
    fewest = job.num_to_do * MIN_ANSWERED_TO_PREDICT if job.only_evaluates else MIN_STEPS_TO_PREDICT
    if job.started_at is None or job.state != JobState.RUNNING or job.num_done < fewest:
        return None
    if job.only_evaluates and job.num_attempts > 1:
        return None  # an evaluation restarted, but its clock did not
    recent = [value for _, value in step_s.newest] if step_s else []
    pace = sum(recent) / len(recent) if recent else (now - job.started_at).total_seconds() / job.num_done
    return timedelta(seconds=pace * max(0, job.num_to_do - job.num_done))


def _left(job: Job, step_s: Ends | None, *, now: datetime) -> str:
    if job.is_terminal:
        return day(job.finished_at)
    left = time_left(job, step_s, now=now)
    return f"about {span(left)} left" if left is not None else ""


def _reward_text(untrusted: float | None, segments: float | None) -> str:
    """For the newest step. `untrusted`: the share of trajectories not used for training because their reward is not
    trusted; `segments`: the mean number per trajectory."""
    texts = ["of the training batch"]
    texts += [f"{share(untrusted)} not trusted, not trained on"] if untrusted else []
    texts += [f"{segments:.3g} segments per trajectory"] if segments and segments > 1 else []
    return "; ".join(texts)


def _evaluation(job: Job, ends: dict[str, Ends]) -> HeldOut:
    if HELD_OUT in ends:
        words = _errors(job, ends)
    elif job.is_terminal:
        words = "the job ended without a result"
    else:
        words = "available when all prompts are answered"
    return HeldOut(first=reward(_newest(ends.get(HELD_OUT))), words=words)


def _errors(job: Job, ends: Mapping[str, Ends]) -> str:
    """The errors of the newest result."""
    error, passed = _newest(ends.get(HELD_OUT_ERROR)), _newest(ends.get(PASSED))
    texts = [] if error is None else [f"± {error:.3f} (standard error)"]
    if passed is not None:
        samples, deviation = job.spec["evaluation"].get("samples", 1), _newest(ends.get(PASSED_ERROR))
        texts.append(f"pass@{samples} {reward(passed)}" + ("" if deviation is None else f" ± {deviation:.3f}"))
    return ", ".join(texts)


def _held_out(job: Job, all_ends: Mapping[str, Ends]) -> HeldOut:
    """Before and after training. A job that started from a checkpoint may have only the second, as its first evaluation
    may have been lost with an attempt."""
    nothing, ends, errors = reward(None), all_ends.get(HELD_OUT), _errors(job, all_ends)
    if ends is None:
        return HeldOut(first=nothing, last=nothing, words="measured before and after training")
    (first_step, first), (last_step, last) = ends.first, ends.newest[-1]
    start = starting_steps([job.pk]).get(job.pk, 0) if job.start_from else 0
    if first_step > start:
        return HeldOut(first=nothing, last=reward(last), words=_and("not measured before training", errors))
    if first_step == last_step:
        second = (
            "the job ended before the second evaluation" if job.is_terminal else "the second result comes at the end"
        )
        return HeldOut(first=reward(first), last=nothing, words=_and(f"before training; {second}", errors))
    tone: Tone = "good" if last > first else "bad" if last < first else "plain"
    words = _and("on prompts never trained on", errors)
    return HeldOut(first=reward(first), last=reward(last), change=change(last - first), words=words, tone=tone)


def _and(words: str, errors: str) -> str:
    return f"{words}; {errors}" if errors else words


def _newest(ends: Ends | None) -> float | None:
    return ends.newest[-1][1] if ends else None
