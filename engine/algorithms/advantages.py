"""Advantages from rewards.

    N trajectories    G groups    M written tokens of all trajectories, one after the other    L tokens of one

Invariants:
- a group whose rewards are all equal carries no signal: its advantages are exactly zero, less the share of its costs;
- advantages of a group add up to zero (within rounding);
- a critic sees written tokens only: a tool's output between two of them is part of the second token's state;
- no tensor has more than M numbers: trajectories are segments of packed tokens, never padded to the longest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from engine.spec.job import AlgorithmSpec
from engine.spec.recipes import RECIPES

_STD_FLOOR = 1e-6  # so that rewards that differ only by rounding do not become advantages of 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Advantages:
    """One value per token (M), or per trajectory (N) where all tokens of a trajectory share one."""

    values: Tensor
    of_tokens: bool
    returns_M: Tensor | None = None
    """The critic's targets."""

    def means_N(self, lengths: Sequence[int]) -> Tensor:
        """The mean over each trajectory's tokens; 0 for a trajectory without tokens."""
        lengths_N = torch.tensor(lengths)
        if not self.of_tokens:
            return torch.where(lengths_N > 0, self.values, 0.0)
        parts = torch.split(self.values, list(lengths))
        return torch.stack([part.mean() if len(part) else part.new_zeros(()) for part in parts])

    def over_tokens(self, lengths: Sequence[int]) -> tuple[float, float]:
        """(mean, standard deviation) over all tokens."""
        weights = torch.ones(len(self.values)) if self.of_tokens else torch.tensor(lengths)
        shares = weights.double() / weights.sum()
        mean = (shares * self.values).sum()
        return mean.item(), (shares * (self.values - mean).square()).sum().sqrt().item()


def find_advantages(
    spec: AlgorithmSpec,
    *,
    rewards: Sequence[float],
    groups: Sequence[int],
    lengths: Sequence[int],
    costs_M: Tensor | None,
    values_M: Tensor | None,
) -> Advantages:
    """`costs_M` reduce the reward of their token or, where a trajectory has one advantage, that advantage.

    group_std divides only the rewards by their deviation. Costs are centred on the group's mean and keep their
    coefficient, as k2 and k3 do as loss terms. The other baselines are linear, so they apply to reward less cost.
    REINFORCE++ and PPO whiten both together, as in their papers."""
    kind, lengths_N = RECIPES[spec.name].advantage, torch.tensor(lengths)
    rewards_N = torch.tensor(rewards, dtype=torch.float64)
    if kind != "critic" and kind != "rewards_to_go":
        values_N = group_advantages(rewards_N, torch.tensor(groups), kind).double()
        if costs_M is not None:
            rows_M = torch.arange(len(lengths)).repeat_interleave(lengths_N)
            costs_N = torch.zeros_like(rewards_N).index_add(0, rows_M, costs_M)
            baseline = "group_mean" if kind == "group_std" else kind
            values_N -= group_advantages(costs_N, torch.tensor(groups), baseline).double()
        return Advantages(values=values_N, of_tokens=False)
    rewards_M = torch.zeros(sum(lengths), dtype=torch.float64) if costs_M is None else -costs_M
    written_N = lengths_N > 0
    rewards_M[lengths_N.cumsum(0)[written_N] - 1] += rewards_N[written_N]
    if kind == "rewards_to_go":
        to_go_M = generalised_advantages(rewards_M, torch.zeros_like(rewards_M), lengths, gamma=1.0, gae_lambda=1.0)
        return Advantages(values=whitened(to_go_M), of_tokens=True)
    assert values_M is not None
    known_M = values_M.double().cpu()
    advantages_M = generalised_advantages(
        rewards_M, known_M, lengths, gamma=spec.critic.gamma, gae_lambda=spec.critic.gae_lambda
    )
    return Advantages(values=whitened(advantages_M), of_tokens=True, returns_M=advantages_M + known_M)


def group_advantages(
    rewards_N: Tensor, groups_N: Tensor, kind: Literal["group_std", "group_mean", "leave_one_out"]
) -> Tensor:
    """group_mean: reward less the group's mean. group_std: the same over the group's sample deviation (n - 1).
    leave_one_out: reward less the mean of the group's other rewards, which is n / (n - 1) times group_mean."""
    rewards_N = rewards_N.double()
    _, index_N, sizes_G = torch.unique(groups_N, return_inverse=True, return_counts=True)
    zeros_G = torch.zeros(len(sizes_G), dtype=torch.float64)
    means_G = zeros_G.index_add(0, index_N, rewards_N) / sizes_G
    advantages_N = rewards_N - means_G[index_N]
    others_G = (sizes_G - 1).clamp(min=1)
    if kind == "group_std":
        variances_G = zeros_G.index_add(0, index_N, advantages_N.square()) / others_G
        advantages_N = advantages_N / (variances_G.sqrt()[index_N] + _STD_FLOOR)
    elif kind == "leave_one_out":
        advantages_N = advantages_N * (sizes_G / others_G)[index_N]
    lowest_G = zeros_G.scatter_reduce(0, index_N, rewards_N, "amin", include_self=False)
    highest_G = zeros_G.scatter_reduce(0, index_N, rewards_N, "amax", include_self=False)
    return torch.where((highest_G > lowest_G)[index_N], advantages_N, 0.0).float()


def generalised_advantages(
    rewards_M: Tensor, values_M: Tensor, lengths: Sequence[int], *, gamma: float, gae_lambda: float
) -> Tensor:
    """GAE; the value after the last token is 0. With zero values and both factors 1, these are the rewards to go."""
    advantages_M, values_M = rewards_M.to(torch.float64, copy=True), values_M.double()
    segments = zip(torch.split(advantages_M, list(lengths)), torch.split(values_M, list(lengths)), strict=True)
    for surprises_L, values_L in segments:  # views, so each segment is computed in place
        surprises_L[:-1] += gamma * values_L[1:]
        surprises_L -= values_L
        _sum_to_go(surprises_L, decay=gamma * gae_lambda)
    return advantages_M


def _sum_to_go(x_L: Tensor, *, decay: float) -> None:
    """In place: x[t] = Σ decay^k · x[t+k], k = 0, 1, … Adds up sums of 1, 2, 4, … terms, so a segment takes log L
    operations instead of one per token."""
    if decay == 1.0:
        x_L.copy_(x_L.flip(0).cumsum(0).flip(0))
        return
    reach = 1
    while reach < len(x_L):
        x_L[:-reach] += decay * x_L[reach:]
        reach, decay = 2 * reach, decay * decay


def whitened(x_M: Tensor) -> Tensor:
    """Normalised to mean 0 and deviation 1 over the step's tokens."""
    if not len(x_M):
        return x_M
    return (x_M - x_M.mean()) / (x_M.std(correction=0) + _STD_FLOOR)


def overlong_penalty(num_tokens: int, *, cut: bool, max_new_tokens: int, overlong_tokens: int) -> float:
    """DAPO's soft penalty: 0 up to `overlong_tokens` before the maximum length, then falling linearly to -1 at it."""
    if not overlong_tokens:
        return 0.0
    if cut:
        return -1.0
    beyond = num_tokens - (max_new_tokens - overlong_tokens)
    return -min(max(beyond / overlong_tokens, 0.0), 1.0)
