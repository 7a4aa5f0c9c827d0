"""A version that is an adapter, for a folder whose model was never trained."""

from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from engine.models.loading import weight_files
from engine.policy.lineage import WeightsId
from engine.weights.low_rank import fingerprint, names_of
from engine.weights.port import LowRank, WeightVersion
from engine.weights.snapshot import pack_weights

RANK = 8


def random_adapter(folder: Path) -> WeightVersion:
    """Of every projection."""
    given: dict[str, Tensor] = {}
    for file in weight_files(folder):
        with safe_open(file, framework="pt") as stored:
            for name in (name for name in stored.keys() if name.endswith("_proj.weight")):  # noqa: SIM118 - no mapping
                rows, columns = stored.get_slice(name).get_shape()
                a, b = names_of(name.removesuffix(".weight"))
                given |= {a: torch.randn(RANK, columns), b: torch.randn(rows, RANK)}
    low_rank = LowRank(base=fingerprint(folder), scale=0.5)
    return pack_weights(given, weights=WeightsId(0, 2), low_rank=low_rank)
