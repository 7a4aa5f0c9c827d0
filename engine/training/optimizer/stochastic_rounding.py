"""Stochastic rounding of float32 to bfloat16: up or down at random, so that the expected value is the number itself.

A bfloat16 is the upper half of a float32. Uniform noise added to the lower half carries into the upper half with a
probability proportional to the lower half's value; then the lower half is cut off.

    0x3f80_4000  +  0x0000 … 0xffff  →  0x3f80 three times of four, 0x3f81 once
"""

from typing import Final

import torch
from torch import Tensor

NUM_NOISES: Final = 1 << 16


def round_by_chance(values_N: Tensor, chance: torch.Generator) -> Tensor:
    """`values_N`: float32 and finite, on the generator's device."""
    noise_N = torch.randint(NUM_NOISES, values_N.shape, generator=chance, dtype=torch.int32, device=values_N.device)
    return round_with(values_N, noise_N)


def round_with(values_N: Tensor, noise_N: Tensor) -> Tensor:
    """`noise_N`: from 0 to `NUM_NOISES` - 1."""
    carried_N = values_N.view(torch.int32) + noise_N
    return (carried_N >> 16).to(torch.int16).view(torch.bfloat16)
