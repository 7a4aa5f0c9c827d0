"""Stochastic rounding, over every value of the noise."""

import pytest
import torch

from engine.training.optimizer.stochastic_rounding import NUM_NOISES, round_by_chance, round_with

EVERY_NOISE = torch.arange(NUM_NOISES, dtype=torch.int32)


@pytest.mark.parametrize("value", [1.0, 1.001, 0.999, -3.14159, 1e-8, -2.5e-20, 0.0, 1e-40, 6.02e23])
def test_mean_of_all_roundings_is_the_number(value: float) -> None:
    exact = torch.tensor(value, dtype=torch.float32)
    rounded = round_with(exact.expand(NUM_NOISES), EVERY_NOISE)
    assert rounded.dtype == torch.bfloat16
    # 65,536 numbers of eight significant bits, each one of two neighbours: the sum is exact in float64.
    assert rounded.double().mean().item() == exact.double().item()


def test_number_is_rounded_only_to_its_neighbours() -> None:
    assert set(round_with(torch.tensor(1.001).expand(NUM_NOISES), EVERY_NOISE).tolist()) == {1.0, 1.0078125}
    assert set(round_with(torch.tensor(-1.5).expand(NUM_NOISES), EVERY_NOISE).tolist()) == {-1.5}


def test_same_seed_rounds_the_same_with_uniform_noise() -> None:
    values = torch.full((100_000,), 1.0 + 2.0**-9)  # a quarter of the way
    first, again = (round_by_chance(values, torch.Generator().manual_seed(7)) for _ in range(2))
    assert torch.equal(first, again)
    # Five standard deviations for this number of draws.
    assert (first > 1.0).double().mean().item() == pytest.approx(0.25, abs=5 * (0.25 * 0.75 / 100_000) ** 0.5)
