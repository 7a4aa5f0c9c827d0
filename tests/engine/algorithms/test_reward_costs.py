"""The k1 penalty under each normalisation of advantages keeps its scale."""

import pytest
import torch
from torch import Tensor

from engine.algorithms.advantages import Advantages, find_advantages
from engine.spec.job import AlgorithmSpec, KlSpec
from engine.spec.recipes import RECIPES, AlgorithmName

LENGTHS = [100] * 8
EQUAL, MIXED = [1.0] * 8, [0.0, 1.0] * 4
COSTS = 0.001 * 0.05 * torch.randn(800, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
OF_GROUPS = [name for name, recipe in RECIPES.items() if recipe.has_group_baseline]
OF_STEPS = [name for name in RECIPES if name not in OF_GROUPS]


def advantages_of(name: AlgorithmName, rewards: list[float], costs_M: Tensor | None) -> Advantages:
    return find_advantages(
        AlgorithmSpec(name=name, kl=KlSpec(coefficient=0.001, estimator="k1")),
        rewards=rewards,
        groups=[0] * len(rewards),
        lengths=LENGTHS[: len(rewards)],
        costs_M=costs_M,
        values_M=torch.full((100 * len(rewards),), sum(rewards) / len(rewards)),
    )


@pytest.mark.parametrize("rewards", [EQUAL, MIXED], ids=["equal", "mixed"])
@pytest.mark.parametrize("name", OF_GROUPS)
def test_costs_keep_their_scale_beside_a_baseline(name: AlgorithmName, rewards: list[float]) -> None:
    """Costs are centred on the mean of the group, or of its other samples, and never divided by a deviation."""
    costs_N = COSTS.view(8, 100).sum(1)
    centred_N = (costs_N - costs_N.mean()) * (8 / 7 if RECIPES[name].advantage == "leave_one_out" else 1)
    apart = advantages_of(name, rewards, COSTS).values - advantages_of(name, rewards, None).values
    torch.testing.assert_close(apart, -centred_N, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("name", OF_GROUPS)
def test_tiny_costs_do_not_blow_up_equal_rewards(name: AlgorithmName) -> None:
    assert advantages_of(name, EQUAL, None).values.tolist() == [0.0] * 8
    assert advantages_of(name, EQUAL, COSTS).values.abs().max() < 2e-3


@pytest.mark.parametrize("name", OF_GROUPS)
def test_costs_of_a_lone_sample_are_its_baseline(name: AlgorithmName) -> None:
    assert advantages_of(name, [1.0], COSTS[:100]).values.tolist() == [0.0]


@pytest.mark.parametrize("rewards", [EQUAL, MIXED], ids=["equal", "mixed"])
@pytest.mark.parametrize("name", OF_STEPS)
def test_whitening_is_of_rewards_less_costs(name: AlgorithmName, rewards: list[float]) -> None:
    """As in both papers: a step of equal rewards learns from its costs at full scale."""
    values_M = advantages_of(name, rewards, COSTS).values
    assert values_M.mean().item() == pytest.approx(0, abs=1e-9)
    assert values_M.std(correction=0).item() == pytest.approx(1, abs=0.05)
    costs_to_go = COSTS.view(8, 100).flip(1).cumsum(1).flip(1)
    raw_M = (torch.tensor(rewards, dtype=torch.float64).unsqueeze(1) - costs_to_go).flatten()
    torch.testing.assert_close(values_M, (raw_M - raw_M.mean()) / (raw_M.std(correction=0) + 1e-6))
