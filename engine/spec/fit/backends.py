"""What each backend of the trainer would take of each device, and send: the same job by torch (FSDP2) and by DeepSpeed.

For choosing one: backends that cannot train this job are left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from engine.spec.fit.need import GB, gigabytes
from engine.spec.fit.plan import PROMPT_TOKENS, Division, TrainerPlan
from engine.spec.fit.remedies import Change, with_changes
from engine.spec.fit.shape import ModelShape
from engine.spec.fit.trainer import trained_weights, trainer_need
from engine.spec.job import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    words: str
    needed: int
    """By each device, margins included."""
    sent: int
    """Of an update of one micro-batch, by each device."""

    @property
    def line(self) -> str:
        return (
            f"{self.words}: {gigabytes(self.needed)}, and {self.sent / GB:.1f} GB sent in an update of one micro-batch"
        )


def backend_lines(
    spec: JobSpec, shape: ModelShape, *, prompt_tokens: int = PROMPT_TOKENS, teacher: ModelShape | None = None
) -> list[str]:
    """None where there is no choice."""
    choices = list(_choices(spec, shape, prompt_tokens, teacher))
    return (
        ["Each device would need, by trainer.backend:", *(f"    {each.line}" for each in choices)]
        if choices[1:]
        else []
    )


def _choices(spec: JobSpec, shape: ModelShape, prompt_tokens: int, teacher: ModelShape | None) -> Iterator[Choice]:
    if spec.trainer_devices < 2 or shape.num_mixtures:  # DeepSpeed trains dense models
        return
    torch: dict[str, Any] = {"trainer.backend": "torch"}
    stages = [{"trainer.backend": "deepspeed", "trainer.zero_stage": stage} for stage in (1, 2, 3)]
    for settings in (torch, *stages):
        asked = with_changes(spec, [Change(words="", settings=settings)])
        if asked is not None:
            plan = TrainerPlan.of_spec(asked, shape, prompt_tokens=prompt_tokens, teacher=teacher)
            yield Choice(
                words=", ".join(f"{path} {value}" for path, value in settings.items()),
                needed=trainer_need(shape, plan).num_bytes,
                sent=sent_bytes(shape, plan),
            )


def sent_bytes(shape: ModelShape, plan: TrainerPlan) -> int:
    """(n - 1) / n of: FSDP 2·c·P gathered and 4·T added up; ZeRO 1 and 2 4·T added up and 4·T weights back; ZeRO 3
    8·P gathered and 4·T added up. What a recomputed layer needs again is gathered already."""
    trained, num_weights = trained_weights(shape, plan), shape.num_weights
    gathered: dict[Division, int] = {
        "whole": 0,
        "fsdp": 2 * plan.product_bytes * num_weights,
        "zero1": 4 * trained,
        "zero2": 4 * trained,
        "zero3": 8 * num_weights,
    }
    return (gathered[plan.division] + 4 * trained) * (plan.num_devices - 1) // plan.num_devices
