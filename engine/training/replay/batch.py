"""A batch's arrays as the tensors of one file.

Invariant: a batch round-trips exactly, to the last bit of a reward or log-prob.
"""

from dataclasses import fields

import torch
from torch import Tensor

from engine.training.batch import TokenArrays, TrainingBatch, Trajectories

_OF_TOKENS = tuple(each.name for each in fields(TokenArrays))
_OF_TRAJECTORIES = tuple(each.name for each in fields(TrainingBatch) if each.name.endswith("_N"))


def as_tensors(trajectories: Trajectories) -> dict[str, Tensor]:
    """Copies the arrays, which may be read-only memory of another owner."""
    batch = TrainingBatch.of(trajectories)
    arrays = {name: getattr(batch.tokens, name) for name in _OF_TOKENS}
    arrays |= {name: getattr(batch, name) for name in _OF_TRAJECTORIES}
    return {name: torch.tensor(array) for name, array in arrays.items()}


def from_tensors(tensors: dict[str, Tensor]) -> TrainingBatch:
    ids_A = tensors["ids_A"].numpy()
    return TrainingBatch(
        tokens=TokenArrays(**{name: tensors[name].numpy() for name in _OF_TOKENS}),
        lowest_id=int(ids_A.min(initial=0)),
        highest_id=int(ids_A.max(initial=0)),
        **{name: tensors[name].numpy() for name in _OF_TRAJECTORIES},
    )
