"""The comparison on a replayed step: bit for bit the same, or the first tensor that diverges.

Invariant: tensors are compared in the order of computation, beginning with the step's input.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from engine.training.replay.record import StepRecord, digest, inputs, outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    num_tensors: int
    diverging: str | None = None
    how: str = ""

    @property
    def is_the_same(self) -> bool:
        return self.diverging is None


def changed_input(folder: Path, record: StepRecord) -> Comparison:
    """Checks the step's input against the recording."""
    return _judge(inputs(folder), record, lambda name, tensor: "it differs from the recording")


def compare(folder: Path, again: Path, record: StepRecord) -> Comparison:
    """`again`: the folder of the replay."""

    def how(name: str, tensor: Tensor) -> str:
        recorded = next((other for its, other in outcome(folder) if its == name), None)
        return "the recording has no such tensor" if recorded is None else difference(recorded, tensor)

    return _judge(outcome(again), record, how)


def difference(recorded: Tensor, replayed: Tensor) -> str:
    if recorded.shape != replayed.shape or recorded.dtype != replayed.dtype:
        kinds = [f"{each.dtype} {tuple(each.shape)}" for each in (recorded, replayed)]
        return f"recorded as {kinds[0]}, replayed as {kinds[1]}"
    was, now = recorded.double(), replayed.double()
    apart = (was != now) & ~(was.isnan() & now.isnan())
    if not apart.any():
        return "the same numbers in other bits"
    largest = torch.where(apart, (was - now).abs(), 0.0).max().item()
    return f"{int(apart.sum())} of {recorded.numel()} numbers, the largest difference is {largest:.3g}"


def _judge(tensors: Iterable[tuple[str, Tensor]], record: StepRecord, how: Callable[[str, Tensor], str]) -> Comparison:
    num_tensors = 0
    for name, tensor in tensors:
        num_tensors += 1
        if record.digests.get(name) != digest(tensor):
            return Comparison(num_tensors=num_tensors, diverging=name, how=how(name, tensor))
    return Comparison(num_tensors=num_tensors)
