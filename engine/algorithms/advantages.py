"""Rewards to advantages.

    N trajectories    G groups

Invariants:
- a group whose rewards are all equal says nothing: its advantages are exactly zero;
- advantages of a group add up to zero (within rounding).
"""

import torch
from torch import Tensor

_STD_FLOOR = 1e-6  # keeps rewards that differ by rounding only from becoming advantages of 1


def group_advantages(rewards_N: Tensor, groups_N: Tensor, *, normalise_std: bool = True) -> Tensor:
    """GRPO: reward less the group's mean, over the group's standard deviation (of a sample: n - 1)."""
    rewards_N = rewards_N.double()
    _, index_N, sizes_G = torch.unique(groups_N, return_inverse=True, return_counts=True)
    zeros_G = torch.zeros(len(sizes_G), dtype=torch.float64)
    means_G = zeros_G.index_add(0, index_N, rewards_N) / sizes_G
    centred_N = rewards_N - means_G[index_N]
    variances_G = zeros_G.index_add(0, index_N, centred_N.square()) / (sizes_G - 1).clamp(min=1)
    lowest_G = zeros_G.scatter_reduce(0, index_N, rewards_N, "amin", include_self=False)
    highest_G = zeros_G.scatter_reduce(0, index_N, rewards_N, "amax", include_self=False)
    advantages_N = centred_N / (variances_G.sqrt()[index_N] + _STD_FLOOR) if normalise_std else centred_N
    return torch.where((highest_G > lowest_G)[index_N], advantages_N, 0.0).float()
