"""`python -m engine replay LOG`: builds the brain of a recording, sends it the same messages, compares its decisions.

Invariant: the brain is the engine's own, and only the recording is needed, neither Ray nor weights.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from engine.live.body.loop import Brain
from engine.live.body.recording import Recorded, digest, read_recording
from engine.pipeline.data.brain import DataBrain
from engine.pipeline.driver.brain import DriverBrain
from engine.pipeline.effects import Effect
from engine.pipeline.manager.brain import ManagerBrain
from engine.pipeline.manager.placing import Placing
from engine.pipeline.manager.repacker import Repacker
from engine.pipeline.messages.addresses import Address
from engine.pipeline.plan import Plan
from engine.pipeline.records import DataProgress
from engine.pipeline.relay.brain import RelayBrain
from engine.pipeline.rollout.brain import RolloutBrain
from engine.pipeline.trainer.brain import TrainerBrain
from engine.policy.placement import JobNeeds, Places
from engine.policy.recovery import Patience
from engine.policy.rooms import HostView


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    number: int
    received: Recorded
    effects: list[Effect]

    @property
    def is_the_same(self) -> bool:
        return digest(self.effects) == self.received.decided


def replay(file: Path) -> tuple[Address, Iterator[Decision]]:
    """Returns the part, and its decisions in order. Raises `ValueError` if the file is no recording of a brain."""
    part, built_with, entries = read_recording(file)
    brain = _build_brain(part, built_with)

    def decisions() -> Iterator[Decision]:
        for number, each in enumerate(entries, start=1):
            yield Decision(number=number, received=each, effects=brain.handle(each.message, each.now))

    return part, decisions()


def _build_brain(part: Address, built_with: Mapping[str, Any]) -> Brain:
    if part.kind == "relay":
        return RelayBrain(
            host=built_with["host"],
            hosts=tuple(built_with["hosts"]),
            incarnation=built_with["incarnation"],
            anchor_every=built_with["anchor_every"],
        )
    plan = TypeAdapter(Plan).validate_python(built_with["plan"])
    match part.kind:
        case "driver":
            return DriverBrain(
                plan,
                now=built_with["now"],
                num_replicas=built_with["num_replicas"],
                max_replicas=built_with["max_replicas"],
                patience=TypeAdapter(Patience).validate_python(built_with["patience"]),
            )
        case "manager":
            return ManagerBrain(
                now=built_with["now"],
                incarnations={Address.parse(part): number for part, number in built_with["incarnations"].items()},
                away=[Address.parse(part) for part in built_with["away"]],
                waiting=[Address.parse(part) for part in built_with["waiting"]],
                placing=Placing(
                    needs=TypeAdapter(JobNeeds).validate_python(built_with["needs"]),
                    places=TypeAdapter(Places).validate_python(built_with["places"]),
                    hosts=TypeAdapter(tuple[HostView, ...]).validate_python(built_with["hosts"]),
                ),
                repacker=Repacker.for_plan(plan),
                patience=TypeAdapter(Patience).validate_python(built_with["patience"]),
            )
        case "data":
            progress = TypeAdapter(DataProgress).validate_python(built_with["progress"])
            return DataBrain(plan, start_step=built_with["start_step"], progress=progress)
        case "trainer":
            return TrainerBrain(plan, epoch=built_with["epoch"])
        case "rollout":
            return RolloutBrain(
                plan,
                replica=built_with["replica"],
                incarnation=built_with["incarnation"],
                relay=built_with["relay"],
            )
        case _:
            raise ValueError(f"a recording of {part}, which has no brain")
