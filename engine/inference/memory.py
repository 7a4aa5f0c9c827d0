"""Zeroed memory whose pages are allocated when they are first used."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_CACHE_LINE = 64


def untouched_zeros(shape: Sequence[int], *, dtype: torch.dtype, device: str) -> Tensor:
    """On a CPU, memory from numpy: torch.zeros would write to every page, which the kernel has zeroed already."""
    if torch.device(device).type != "cpu":
        return torch.zeros(tuple(shape), dtype=dtype, device=device)
    num_bytes = math.prod(shape) * dtype.itemsize
    room = torch.from_numpy(np.zeros(num_bytes + _CACHE_LINE, dtype=np.uint8))
    start = -room.data_ptr() % _CACHE_LINE
    return room[start : start + num_bytes].view(dtype).view(tuple(shape))
