"""Hints: settings of a valid spec that work against each other, each with the change that helps.

Hints are shown with the presets before a job is submitted. They never refuse a spec.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Final

from engine.spec.job import JobSpec
from engine.spec.schedules import SCHEDULES

UNCUT: Final = {"top_p": 1.0, "top_k": 0, "min_p": 0.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    path: str
    """The path of the setting to change first."""
    message: str


def hints_of(spec: JobSpec) -> tuple[Hint, ...]:
    if spec.only_evaluates:
        return ()
    return (*_unfilled_replicas(spec), *_cut_distribution(spec))


def most_running(spec: JobSpec) -> int:
    """The most trajectories that training has running at once: those of a window, or of all groups that may be open
    while none is in training (engine/policy/schedule.py)."""
    entry, bound = SCHEDULES[spec.schedule.name], spec.schedule.staleness_bound
    if entry.lead_steps is None:
        steps: float = min(entry.window_steps, bound + 1)
    else:
        steps = 1 + min(entry.lead_steps if spec.schedule.lead_steps is None else spec.schedule.lead_steps, bound)
    num_groups = ceil(min(steps, spec.training.steps) * spec.training.prompts_per_step)
    return num_groups * (spec.algorithm.group_size + spec.algorithm.groups.num_spare)


def _unfilled_replicas(spec: JobSpec) -> Iterator[Hint]:
    """A hint if fewer replicas could run all trajectories; a larger max_batch alone costs no devices."""
    rollout, most = spec.rollout, most_running(spec)
    enough = ceil(most / rollout.max_batch)
    if enough >= rollout.replicas:
        return
    more = "training.prompts_per_step"
    if SCHEDULES[spec.schedule.name].lead_steps is not None:
        more += " or schedule.lead_steps"
    message = (
        f"{rollout.replicas:,} replicas of {rollout.max_batch:,} sequences have room for "
        f"{rollout.replicas * rollout.max_batch:,} trajectories, but this job never has more than {most:,} running. "
        f"Set rollout.replicas to {enough:,}, or raise {more}."
    )
    yield Hint(path="rollout.replicas", message=message)


def _cut_distribution(spec: JobSpec) -> Iterator[Hint]:
    cuts = [name for name, uncut in UNCUT.items() if getattr(spec.rollout, name) != uncut]
    if not cuts:
        return
    given = ", ".join(f"rollout.{name} {getattr(spec.rollout, name):g}" for name in cuts)
    message = (
        f"Tokens are sampled from a truncated distribution ({given}), but log-probs cover the whole vocabulary: they "
        "are lower than the sampling probabilities, and no correction makes up for that. Leave "
        f"{' and '.join(f'rollout.{name} at {UNCUT[name]:g}' for name in cuts)}; rollout.temperature is accounted for."
    )
    yield Hint(path=f"rollout.{cuts[0]}", message=message)
