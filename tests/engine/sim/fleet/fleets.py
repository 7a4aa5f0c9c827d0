"""Fleets small enough for a test: a few devices, a few groups, lengths that still have a tail."""

from collections.abc import Mapping
from typing import Any, Final

from engine.pipeline.effects import TrainOn
from engine.sim.compare.contestants import CONTESTANTS
from engine.sim.costs.devices import DEVICES
from engine.sim.costs.lengths import Lengths
from engine.sim.costs.models import MODELS
from engine.sim.fleet.fleet import Fleet
from engine.sim.fleet.outcome import Outcome
from engine.sim.fleet.setup import Setup

SHORT: Final = Lengths(median=300, longest=3_000, prompt=50)


def setup_of(schedule: str, **changes: Any) -> Setup:
    contestant = CONTESTANTS[schedule]
    lora_rank = 32 if contestant.is_for_lora else 0
    usual: Mapping[str, Any] = {
        "device": DEVICES["H800"],
        "model": MODELS["7B"],
        "train_devices": 8 if contestant.is_colocated else 4,
        "rollout_devices": 8 if contestant.is_colocated else 4,
        "tp": 1,
        "lengths": SHORT,
        "steps": 3,
        "warm_steps": 2,
        "groups_per_step": 12,
        "group_size": 4,
        "mini_batch": 24,
        "max_batch": 24,
    }
    return Setup(
        schedule=contestant.schedule,
        is_colocated=contestant.is_colocated,
        slots=contestant.slots_with(lora_rank),
        lora_rank=lora_rank,
        **{**usual, **changes},
    )


class NotingFleet(Fleet):
    """Keeps every batch that was trained on."""

    def __init__(self, setup: Setup) -> None:
        self.batches: list[TrainOn] = []
        super().__init__(setup, on_batch=self.batches.append)


def outcome_of(schedule: str, **changes: Any) -> Outcome:
    return Fleet(setup_of(schedule, **changes)).run()
