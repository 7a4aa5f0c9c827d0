"""The schedules that are compared: only those that a brain can run.

`sync` is the published baseline: all devices generate, then all train; `sync_split` is the same on a fixed split of the
devices. `paper` is the Laminar paper's own design: a replica has one version, is drained when there is a newer one, and
emptied by its KV use, up to the roofline bound. `laminar_delta` is `laminar` with another way to hold versions,
simulated only; `adapter` is `laminar` in a LoRA job, which the grid does not contain: a file describes one.
"""

from dataclasses import dataclass, replace
from typing import Final

from engine.policy.schedule import PRESETS, Schedule
from engine.sim.costs.slots import Slots

ONE: Final = Slots()


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    name: str
    schedule: Schedule
    is_colocated: bool = False
    slots: Slots = ONE
    """How a replica holds versions."""
    design: str
    is_for_lora: bool = False

    def slots_with(self, lora_rank: int) -> Slots:
        """In a job that trains adapters of this rank; 0: all weights. Raises `ValueError` where it makes no sense."""
        if self.is_for_lora and not lora_rank:
            raise ValueError(f"lora_rank: {self.name} holds adapters side by side; must be at least 1, got 0")
        if self.slots.kept == "delta" and lora_rank:
            raise ValueError(
                f"lora_rank: {self.name} holds what training changes of all weights; must be 0, got {lora_rank}. "
                "With LoRA only adapters change: adapter holds those"
            )
        return Slots.of_lora(self.slots.num, lora_rank) if lora_rank else self.slots


_ALL: Final = (
    Contestant(name="sync", schedule=PRESETS["sync"], is_colocated=True, design="all generate, then all train"),
    Contestant(name="sync_split", schedule=PRESETS["sync"], design="some generate, then the others train"),
    Contestant(name="one_step", schedule=PRESETS["one_step"], design="one step behind, in windows"),
    Contestant(name="stream", schedule=PRESETS["stream"], design="windows of two steps, taken as they come"),
    Contestant(name="bounded", schedule=PRESETS["bounded"], design="half a step ahead, drained"),
    Contestant(name="partial", schedule=PRESETS["partial"], design="interrupted, caches recomputed"),
    Contestant(
        name="inflight",
        schedule=PRESETS["inflight"],
        design="new weights under running answers, caches kept",
    ),
    Contestant(
        name="paper",
        schedule=PRESETS["paper"],
        design="one version a replica, drained; repack by KV use up to the roofline bound",
    ),
    Contestant(
        name="laminar",
        schedule=PRESETS["laminar"],
        slots=Slots(num=2),
        design="two whole versions a replica, side by side; repack by empty places",
    ),
    Contestant(
        name="laminar_cap",
        schedule=replace(PRESETS["laminar"], age_cap=1),
        slots=Slots(num=2),
        design="as laminar; answers older than one version, or without a slot, continue on the newest with their cache",
    ),
    Contestant(
        name="laminar_delta",
        schedule=PRESETS["laminar"],
        slots=Slots(num=4, kept="delta"),
        design="four versions a replica: the newest whole, older ones as what differs from it; repack by empty places",
    ),
    Contestant(
        name="laminar_delta_cap",
        schedule=replace(PRESETS["laminar"], age_cap=3),
        slots=Slots(num=4, kept="delta"),
        design="as laminar_delta; answers older than three versions, or without a slot, continue on the newest",
    ),
    Contestant(
        name="adapter",
        schedule=PRESETS["laminar"],
        slots=Slots(num=4),
        design="four adapters a replica on one base, in one batch; repack by empty places",
        is_for_lora=True,
    ),
)
CONTESTANTS: Final = {contestant.name: contestant for contestant in _ALL}
OF_THE_GRID: Final = tuple(name for name, contestant in CONTESTANTS.items() if not contestant.is_for_lora)
OURS: Final = ("laminar", "laminar_cap", "laminar_delta", "laminar_delta_cap")
"""Our designs; the best of them is reported next to `paper`."""
