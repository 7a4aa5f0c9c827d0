"""The schedule: when replicas start groups, when they take new weights, what is trained on. One row for each system.

1. May this replica start another group now?                       `lead_steps`, `window_steps`, `start_lag`
2. When does a replica take new weights, with what in flight?      `publish_every`, `in_flight`, `refresh_lag`
                                                                   and `age_cap`
3. Which finished trajectories may be trained on?                  `max_staleness`
4. What becomes of the few that take long?                         `repack`

              lead_steps  window_steps  start_lag  publish_every  in_flight  refresh_lag  max_staleness  repack
    sync           0           1            0            1        drain           1             0          no
    one_step       1           1            0            1        drain           1             1          no
    stream         3           2            0            2        drain           1             3          no
    bounded        0.5         -           any           1        drain           1            any         no
    partial        2           -           any           1        reprefill       -            any         no
    inflight       2           -           any           1        keep            -            any         no
    paper          2           -           any           1        drain           1            any         by KV use
    laminar        2           -           any           1        pin             -            any         by places
     with 1 slot   2           -           any           1        drain           2            any         by places

Where this table has "any", a job still has a bound: its own, or that of engine/spec/schedules.py. Where there are no
windows, a job may set another lead.

`lead_steps` is how far generation runs ahead of training. Counted in groups it is AReaL's capacity,
(η + version + 1)·B − (accepted + running), with η = lead_steps, and verl's budget between two syncs,
(1 + staleness)·B − stale, with its fraction as lead_steps: both bound the open groups to (1 + lead)·B.
`window_steps` is a barrier: the groups of so many steps start from the same weights, and the next window starts only
when all of them are complete. The trainer takes each step's share as soon as it is there.
A replica that holds several versions has as many slots for weights: a trajectory ends on the weights that it began
with, fresh work starts on the newest, and a slot whose last trajectory has ended takes the next version.
With `age_cap` new weights do not wait for that: where no slot is left, or where the oldest weights in use are more
versions old, the newest overwrite those, and trajectories on them continue with their keys and values. Trajectories on
other weights are untouched; an evaluation's answers always end on their own weights.

Invariants:
- open groups (in progress, ready, in training) never exceed (1 + lead_steps) steps' worth, and never what the job still
  needs: the buffer is bounded and nothing is generated in vain;
- unless `in_flight` is reprefill or keep, or there is an age cap, a trajectory has exactly one version;
- a group is trained on only if its staleness is within the bound, whatever the preset.
"""

from dataclasses import dataclass, replace
from math import ceil
from typing import Final, Literal

from engine.policy.lineage import WeightsId
from engine.policy.repack import RepackBy
from engine.spec.job import ScheduleSpec
from engine.spec.schedules import SCHEDULES

Refresh = Literal["keep", "drain", "install"]
InFlight = Literal["drain", "pin", "reprefill", "keep"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandView:
    """Counts of the open groups, and of those that the trainer still needs."""

    num_open: int
    """In progress, ready or in training."""
    groups_per_step: int
    steps_left: int
    num_in_progress: int = 0
    num_ready: int = 0
    left_of_window: int = 0
    """Groups that the current window may still open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaWeightsView:
    weights: WeightsId
    """Weights that fresh work starts on."""
    newest: WeightsId
    has_free_slot: bool
    """Nothing runs on the weights of some slot. With one slot: nothing runs."""
    oldest: WeightsId | None = None
    """The oldest weights in use, among those without work that must end on them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    name: str
    lead_steps: float
    """Steps' worth of groups that may be open beyond the step in training."""
    window_steps: int = 0
    """Steps whose groups start from the same weights; 0: no barrier."""
    start_lag: int | None = None
    """Limit on the staleness of a replica's weights when it starts a group; with windows, when it began. None: any."""
    publish_every: int = 1
    """Steps between two published versions."""
    in_flight: InFlight = "drain"
    """What happens to running sequences once newer weights are there: they end first (drain), they end on their weights
    while others start on the newer ones (pin), or they continue on the newer weights, with their KV cache recomputed
    (reprefill) or unchanged (keep)."""
    refresh_lag: int = 1
    """With drain: a replica takes fresh work until its weights are so many versions old. More drains less often."""
    age_cap: int | None = None
    """With pin: sequences on weights that are more versions old continue on the newest, with their KV cache
    unchanged; so do those on the oldest weights where no slot is left. None: all end on their own weights."""
    max_staleness: int | None = None
    repack: bool = False
    repack_by: RepackBy = "places"

    @property
    def keeps_version(self) -> bool:
        """A trajectory ends on the weights that it began with, unless the age cap takes effect."""
        return self.in_flight in ("drain", "pin")

    @property
    def mixes_versions(self) -> bool:
        """A trajectory may have several versions. Each of its tokens knows its own."""
        return not self.keeps_version or self.age_cap is not None

    def may_start(self, demand: DemandView, *, lag: int) -> bool:
        """`lag`: staleness of the replica's weights (with windows: at the version with which the window began)."""
        if self.start_lag is not None and lag > self.start_lag:
            return False
        if self.window_steps:
            return demand.left_of_window > 0
        return demand.num_open < min(self._needed(demand), self._allowed(demand))

    def next_window(self, demand: DemandView) -> int:
        """The number of groups that the next window opens; 0: the window before is not complete yet."""
        if demand.num_in_progress or demand.left_of_window:
            return 0
        whole = self.window_steps * demand.groups_per_step
        missing = -demand.num_ready % demand.groups_per_step  # of a step that cannot be trained without them
        room = self._allowed(demand) - demand.num_open
        size = whole if room >= whole else missing
        return max(0, min(size, room, self._needed(demand) - demand.num_open))

    def refresh(self, replica: ReplicaWeightsView) -> Refresh:
        if replica.newest <= replica.weights:
            return "keep"
        if replica.has_free_slot or not self.keeps_version or self.lays_over(replica):
            return "install"
        lag = replica.newest.version - replica.weights.version
        is_old = self.in_flight == "drain" and lag >= self.refresh_lag
        return "drain" if is_old or replica.newest.epoch > replica.weights.epoch else "keep"

    def lays_over(self, replica: ReplicaWeightsView) -> bool:
        """The newest weights overwrite the oldest ones in use, under running sequences."""
        if self.age_cap is None or replica.oldest is None or replica.newest <= replica.oldest:
            return False
        is_of_another_trainer = replica.newest.epoch > replica.oldest.epoch
        is_too_old = is_of_another_trainer or replica.newest.version - replica.oldest.version > self.age_cap
        return is_too_old or not replica.has_free_slot

    def may_train(self, *, staleness: int) -> bool:
        return self.max_staleness is None or staleness <= self.max_staleness

    def publishes(self, step: int) -> bool:
        return step % self.publish_every == 0

    def _needed(self, demand: DemandView) -> int:
        return demand.steps_left * demand.groups_per_step

    def _allowed(self, demand: DemandView) -> int:
        return ceil((1 + self.lead_steps) * demand.groups_per_step)


_OWN: Final = {name: entry.max_staleness for name, entry in SCHEDULES.items()}

_WINDOWS: Final = {name: entry.window_steps for name, entry in SCHEDULES.items()}

_LEADS: Final = {name: entry.lead_steps for name, entry in SCHEDULES.items() if entry.lead_steps is not None}

PRESETS: Final = {
    preset.name: preset
    for preset in (
        Schedule(name="sync", lead_steps=0, window_steps=_WINDOWS["sync"], start_lag=0, max_staleness=_OWN["sync"]),
        Schedule(
            name="one_step",
            lead_steps=1,
            window_steps=_WINDOWS["one_step"],
            start_lag=0,
            max_staleness=_OWN["one_step"],
        ),
        Schedule(
            name="stream",
            lead_steps=3,
            window_steps=_WINDOWS["stream"],
            start_lag=0,
            publish_every=2,
            max_staleness=_OWN["stream"],
        ),
        Schedule(name="bounded", lead_steps=_LEADS["bounded"]),
        Schedule(name="partial", lead_steps=_LEADS["partial"], in_flight="reprefill"),
        Schedule(name="inflight", lead_steps=_LEADS["inflight"], in_flight="keep"),
        Schedule(name="paper", lead_steps=_LEADS["paper"], repack=True, repack_by="kv"),
        Schedule(name="laminar", lead_steps=_LEADS["laminar"], in_flight="pin", refresh_lag=2, repack=True),
    )
}


def schedule_for(spec: ScheduleSpec, *, weight_slots: int) -> Schedule:
    """The preset, tightened by the staleness bound of the job or the schedule: work that would be dropped later is not
    started. One slot for weights cannot hold two versions, so `pin` becomes `drain`."""
    preset = PRESETS[spec.name]
    preset = replace(preset, repack=preset.repack and spec.repack)
    if preset.in_flight == "pin" and weight_slots == 1:
        preset = replace(preset, in_flight="drain")
    if preset.in_flight == "pin":
        preset = replace(preset, age_cap=spec.age_cap)
    cap = spec.staleness_bound
    if preset.window_steps:
        return _tighten_windows(preset, cap)
    return replace(
        preset,
        lead_steps=min(preset.lead_steps if spec.lead_steps is None else spec.lead_steps, cap),
        start_lag=cap if preset.start_lag is None else min(preset.start_lag, cap),
        refresh_lag=max(1, min(preset.refresh_lag, cap)),
        max_staleness=cap,
    )


def _tighten_windows(preset: Schedule, cap: int) -> Schedule:
    """Windows of w steps end w - 1 versions behind; with a window ahead, 2w - 1. So a smaller cap first removes the
    window ahead, then shortens the window."""
    if preset.max_staleness is None or cap >= preset.max_staleness:
        return preset
    steps = min(preset.window_steps, cap + 1)
    return replace(preset, lead_steps=steps - 1, window_steps=steps, publish_every=steps, max_staleness=cap)
