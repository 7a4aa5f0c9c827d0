"""Advantages of packed tokens equal the recurrence computed over padded rows.

N trajectories    M tokens of all of them    L tokens of the longest
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from engine.algorithms.advantages import find_advantages, generalised_advantages
from engine.spec.job import AlgorithmSpec, CriticSpec
from engine.spec.recipes import AlgorithmName

FACTORS = [(1.0, 1.0), (1.0, 0.95), (0.99, 0.9), (0.9, 0.0), (0.5, 1.0)]


def padded_advantages(rewards_M: Tensor, values_M: Tensor, lengths: list[int], gamma: float, lam: float) -> Tensor:
    filled_NL = torch.arange(max(lengths, default=0)) < torch.tensor(lengths).unsqueeze(1)
    rewards_NL = torch.zeros(filled_NL.shape, dtype=torch.float64).masked_scatter(filled_NL, rewards_M)
    values_NL = torch.zeros(filled_NL.shape, dtype=torch.float64).masked_scatter(filled_NL, values_M)
    advantages_NL, (next_N, next_value_N) = torch.zeros_like(rewards_NL), torch.zeros(2, len(lengths))
    for column in range(filled_NL.shape[1] - 1, -1, -1):
        surprises_N = rewards_NL[:, column] + gamma * next_value_N - values_NL[:, column]
        advantages_NL[:, column] = next_N = surprises_N + gamma * lam * next_N
        next_value_N = values_NL[:, column]
    return advantages_NL[filled_NL]


@pytest.mark.parametrize(("gamma", "lam"), FACTORS)
@given(lengths=st.lists(st.integers(0, 40), max_size=8), seed=st.integers(0, 1_000))
def test_packed_advantages_equal_padded_ones(gamma: float, lam: float, lengths: list[int], seed: int) -> None:
    chance = torch.Generator().manual_seed(seed)
    rewards_M, values_M = torch.randn(2, sum(lengths), generator=chance, dtype=torch.float64)
    given_M = rewards_M.clone(), values_M.clone()
    packed_M = generalised_advantages(rewards_M, values_M, lengths, gamma=gamma, gae_lambda=lam)
    torch.testing.assert_close(
        packed_M, padded_advantages(rewards_M, values_M, lengths, gamma, lam), rtol=1e-12, atol=1e-12
    )
    assert torch.equal(rewards_M, given_M[0]) and torch.equal(values_M, given_M[1])


class LargestTensor(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the size of the largest tensor that any operation returned."""

    num_numbers = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for each in result if isinstance(result, tuple | list) else [result]:
            self.num_numbers = max(self.num_numbers, each.numel() if isinstance(each, Tensor) else 0)
        return result


@pytest.mark.parametrize("name", ["ppo", "reinforce_pp"])
def test_a_long_trajectory_pads_no_short_one(name: AlgorithmName) -> None:
    lengths = [2_000] + [5] * 300
    num_tokens = sum(lengths)
    with LargestTensor() as largest:  # type: ignore[no-untyped-call]
        find_advantages(
            AlgorithmSpec(name=name, critic=CriticSpec(gae_lambda=0.95) if name == "ppo" else CriticSpec()),
            rewards=[float(i % 2) for i in range(len(lengths))],
            groups=[0] * len(lengths),
            lengths=lengths,
            costs_M=None,
            values_M=torch.zeros(num_tokens),
        )
    assert largest.num_numbers == num_tokens
