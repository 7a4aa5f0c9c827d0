"""A batch as the tensors of one file: rows of all trajectories one after the other, and how many each has.

Invariant: what is read is what was written, to the last bit of a reward or log-prob.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, Final

import torch
from torch import Tensor

from engine.training.port import TrainingTrajectory

# Of each token; the other fields are one value a trajectory.
_ROWS: Final[dict[str, torch.dtype]] = {
    "prompt_ids": torch.int64,
    "response_ids": torch.int64,
    "behaviour_logprobs": torch.float64,
    "written": torch.bool,
    "staleness": torch.int64,
}
_VALUES: Final[dict[str, torch.dtype]] = {
    "group": torch.int64,
    "reward": torch.float64,
    "trusted": torch.bool,
    "cut": torch.bool,
}


def as_tensors(trajectories: Sequence[TrainingTrajectory]) -> dict[str, Tensor]:
    tensors = {
        name: torch.tensor([getattr(each, name) for each in trajectories], dtype=dtype)
        for name, dtype in _VALUES.items()
    }
    for name, dtype in _ROWS.items():
        rows = [getattr(each, name) for each in trajectories]
        tensors[name] = torch.tensor([value for row in rows for value in row], dtype=dtype)
        tensors[f"{name}_lengths"] = torch.tensor([len(row) for row in rows])
    return tensors


def from_tensors(tensors: dict[str, Tensor]) -> list[TrainingTrajectory]:
    columns: dict[str, list[Any]] = {name: tensors[name].tolist() for name in _VALUES}
    for name in _ROWS:
        values, ends = tensors[name].tolist(), accumulate(tensors[f"{name}_lengths"].tolist(), initial=0)
        columns[name] = [tuple(values[start:end]) for start, end in pairwise(ends)]
    return [TrainingTrajectory(**dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]
