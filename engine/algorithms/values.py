"""The critic's loss: half the squared error of the value or of the clipped value, whichever is larger.

    N written tokens

Invariants:
- the loss is divided by the update's tokens, so that micro-batches and ranks add up;
- the terms of the explained variance are summed in float64, since it is a small difference of large sums.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueLoss:
    loss: Tensor
    sums: dict[str, Tensor]


def value_loss(values_N: Tensor, old_values_N: Tensor, returns_N: Tensor, *, clip: float, num_tokens: int) -> ValueLoss:
    near_N = old_values_N + (values_N - old_values_N).clamp(-clip, clip)
    worst_N = torch.maximum((values_N - returns_N).square(), (near_N - returns_N).square())
    loss = worst_N.sum() / (2 * num_tokens)
    with torch.no_grad():
        exact_returns_N, exact_values_N = returns_N.double(), values_N.double()
        error_N = exact_returns_N - exact_values_N
        sums = {
            "value_loss": loss.detach(),
            "value": exact_values_N.sum(),
            "return": exact_returns_N.sum(),
            "return_squared": exact_returns_N.square().sum(),
            "error": error_N.sum(),
            "error_squared": error_N.square().sum(),
        }
    return ValueLoss(loss=loss, sums=sums)
