"""Whether a job fits the devices it is to have: the arithmetic, and the smallest change that makes it fit.

Invariants:
- a possible misfit is reported; only a certain one (`is_certain`: with any batch) is refused;
- a change that the spec would refuse is never advised.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine.fit.need import Need, gigabytes
from engine.fit.plan import DEVICES_PER_HOST, PROMPT_TOKENS, longest_tokens
from engine.fit.planning import plan_trainer
from engine.fit.remedies import (
    Change,
    Changes,
    changed,
    replica_remedies,
    smallest,
    trainer_remedies,
    with_changes,
)
from engine.fit.replica import ReplicaPlan, replica_need
from engine.fit.shape import ModelShape
from engine.fit.trainer import trainer_need
from engine.spec.job import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    need: Need
    device_bytes: int
    changes: Changes | None
    """None: none that the spec accepts are enough."""

    @property
    def is_certain(self) -> bool:
        return self.need.certain > self.device_bytes

    @property
    def sentence(self) -> str:
        """For a person who has not seen the arithmetic."""
        if self.is_certain:
            needs = f"needs {gigabytes(self.need.certain)} at any batch size"
        elif self.need.counted > self.device_bytes:
            needs = f"needs up to {gigabytes(self.need.counted)}"
        else:
            needs = f"needs up to {gigabytes(self.need.num_bytes)}, margins included,"
        return f"{self.need.of} {needs} and has {gigabytes(self.device_bytes)}. {self.advice}"

    @property
    def advice(self) -> str:
        if self.changes is None:
            return "No setting makes it fit. Use a smaller model, or more or larger devices."
        return f"It fits if you {', and '.join(change.words for change in self.changes)}."

    @property
    def lines(self) -> list[str]:
        return [*self.need.lines, self.sentence]


def will_not_fit(
    spec: JobSpec,
    shape: ModelShape,
    device_bytes: int,
    *,
    prompt_tokens: int = PROMPT_TOKENS,
    teacher: ModelShape | None = None,
    num_devices: int | None = None,
) -> Misfit | None:
    """The trainer's devices first, then the replicas'; what is advised is enough for both. None: both fit, margins
    included. `num_devices`: that the job can have, so that no more are advised."""
    most = None if num_devices is None else num_devices - spec.resources.devices_per_replica
    misfit = trainer_misfit(spec, shape, device_bytes, prompt_tokens=prompt_tokens, teacher=teacher, most_devices=most)
    asked = spec if misfit is None else with_changes(spec, misfit.changes or ())
    others = None if asked is None else replica_misfit(asked, shape, device_bytes, prompt_tokens=prompt_tokens)
    if misfit is None or misfit.changes is None or others is None:
        return misfit or others
    return replace(misfit, changes=None if others.changes is None else (*misfit.changes, *others.changes))


def trainer_misfit(
    spec: JobSpec,
    shape: ModelShape,
    device_bytes: int,
    *,
    prompt_tokens: int = PROMPT_TOKENS,
    teacher: ModelShape | None = None,
    most_devices: int | None = None,
    adapts: bool = True,
    devices_per_host: int = DEVICES_PER_HOST,
) -> Misfit | None:
    """`teacher`: the one that the spec names. `most_devices`: that the trainer can have. `adapts`: an adapter may be
    trained instead of all weights."""
    in_place: dict[str, Any] = {
        "prompt_tokens": prompt_tokens,
        "teacher": teacher,
        "devices_per_host": devices_per_host,
    }
    if spec.only_evaluates:
        return None
    plan = plan_trainer(spec, shape, **in_place)
    need = trainer_need(shape, plan)
    if need.num_bytes <= device_bytes:
        return None

    def is_enough(changes: Sequence[Change]) -> bool:
        other = changed(plan, shape, changes)
        if other is None or trainer_need(shape, other).num_bytes > device_bytes:
            return False
        asked = with_changes(spec, changes)
        if asked is None:
            return False
        # What the spec leaves open may be decided otherwise now.
        made = plan_trainer(asked, shape, **in_place)
        return trainer_need(shape, made).num_bytes <= device_bytes

    longest = longest_tokens(spec, shape, prompt_tokens=prompt_tokens)
    remedies = trainer_remedies(plan, longest=longest, most_devices=most_devices, adapts=adapts)
    return Misfit(need=need, device_bytes=device_bytes, changes=smallest(remedies, is_enough=is_enough))


def replica_misfit(
    spec: JobSpec, shape: ModelShape, device_bytes: int, *, prompt_tokens: int = PROMPT_TOKENS
) -> Misfit | None:
    plan = ReplicaPlan.of_spec(spec, shape, prompt_tokens=prompt_tokens)
    need = replica_need(shape, plan)
    if need.num_bytes <= device_bytes:
        return None

    def is_enough(changes: Sequence[Change]) -> bool:
        asked = with_changes(spec, changes)
        if asked is None:
            return False
        made = ReplicaPlan.of_spec(asked, shape, prompt_tokens=prompt_tokens)
        return replica_need(shape, made).num_bytes <= device_bytes

    remedies = replica_remedies(plan, shape)
    return Misfit(need=need, device_bytes=device_bytes, changes=smallest(remedies, is_enough=is_enough))
