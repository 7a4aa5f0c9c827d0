"""The schedule: who waits for whom. It answers three questions, and every system is a preset of its four numbers.

1. May this replica start another group now?                       `lead_steps`, `start_lag`
2. When does a replica take new weights, and what is in flight?    `in_flight`
3. Which finished trajectories may be trained on?                  `max_staleness`

             lead_steps   start_lag   in_flight    max_staleness
    sync          0           0         drain           0
    laminar       2         any         drain        the job's

A schedule that comes later is another row: one step ahead is (1, any, drain, 1), interrupt-and-continue is
(k, any, continue, k), a bound of k is (k, k, drain, k); streaming in mini-batches only changes the batch's size.

Invariants:
- groups that are open (in progress, ready, in training) never exceed (1 + lead_steps) steps' worth, and never what
  the job still needs: the buffer is bounded and nothing is generated in vain;
- with `drain`, a trajectory has exactly one version;
- a group is trained on only if its staleness is within the bound, whatever the preset.
"""

from dataclasses import dataclass, replace
from typing import Final, Literal

from engine.spec.job import ScheduleSpec

Refresh = Literal["keep", "drain", "install"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandView:
    """What is open, and what the trainer still needs."""

    num_open: int
    """Groups in progress, ready or in training."""
    groups_per_step: int
    steps_left: int
    trained_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaWeightsView:
    version: int
    newest: int
    num_running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    name: str
    lead_steps: int
    """Steps' worth of groups that may be open beyond the step in training."""
    start_lag: int | None
    """How many versions behind the trainer a replica may be and still start a group; None: any number."""
    in_flight: Literal["drain", "continue"]
    """What becomes of running sequences once newer weights are there."""
    max_staleness: int | None

    def may_start(self, demand: DemandView, *, version: int) -> bool:
        needed = demand.steps_left * demand.groups_per_step
        allowed = (1 + self.lead_steps) * demand.groups_per_step
        fresh = self.start_lag is None or demand.trained_version - version <= self.start_lag
        return fresh and demand.num_open < min(needed, allowed)

    def refresh(self, replica: ReplicaWeightsView) -> Refresh:
        if replica.newest <= replica.version:
            return "keep"
        if replica.num_running == 0 or self.in_flight == "continue":
            return "install"
        return "drain"

    def may_train(self, *, version: int, trained_version: int) -> bool:
        return self.max_staleness is None or trained_version - version <= self.max_staleness


# A lead of two: one batch lies ready when the trainer comes back, one is being generated. More only adds staleness.
PRESETS: Final = {
    preset.name: preset
    for preset in (
        Schedule(name="sync", lead_steps=0, start_lag=0, in_flight="drain", max_staleness=0),
        Schedule(name="laminar", lead_steps=2, start_lag=None, in_flight="drain", max_staleness=None),
    )
}


def schedule_for(spec: ScheduleSpec) -> Schedule:
    """The preset, tightened by the job's own bound: what would be dropped later is not started at all."""
    preset = PRESETS[spec.name]
    cap = spec.max_staleness
    if cap is None:
        return preset
    return replace(
        preset,
        lead_steps=min(preset.lead_steps, cap),
        start_lag=cap if preset.start_lag is None else min(preset.start_lag, cap),
        max_staleness=cap if preset.max_staleness is None else min(preset.max_staleness, cap),
    )
