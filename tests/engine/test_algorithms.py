"""The maths, against numbers worked out by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.algorithms.advantages import group_advantages
from engine.algorithms.loss import LossParams, policy_loss

PARAMS = LossParams(clip_low=0.2, clip_high=0.28)


def advantages_of(rewards: list[float], groups: list[int], *, normalise_std: bool = True) -> list[float]:
    return group_advantages(torch.tensor(rewards), torch.tensor(groups), normalise_std=normalise_std).tolist()


def test_advantages_are_within_the_group() -> None:
    rewards, groups = [1.0, 5.0, 0.0, 5.0, 0.0, 8.0], [4, 9, 4, 9, 4, 9]
    low, high = 1 / math.sqrt(1 / 3), 2 / math.sqrt(3)  # group 4 has mean 1/3, group 9 has mean 6
    expected = [low * 2 / 3, -high / 2, -low / 3, -high / 2, -low / 3, high]
    assert advantages_of(rewards, groups) == pytest.approx(expected, abs=1e-5)
    assert advantages_of(rewards, groups, normalise_std=False) == pytest.approx([2 / 3, -1, -1 / 3, -1, -1 / 3, 2])


@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, 1e9])
def test_a_group_of_equal_rewards_says_exactly_nothing(reward: float) -> None:
    assert advantages_of([reward] * 7 + [0.0, 1.0], [1] * 7 + [2, 2])[:7] == [0.0] * 7


def test_a_group_of_one_says_nothing() -> None:
    assert advantages_of([3.0], [0]) == [0.0]


@given(st.lists(st.tuples(st.floats(-10, 10, width=16), st.integers(0, 4)), min_size=1, max_size=30))
def test_advantages_of_a_group_add_up_to_zero(rows: list[tuple[float, int]]) -> None:
    rewards, groups = [reward for reward, _ in rows], [group for _, group in rows]
    advantages = advantages_of(rewards, groups)
    for group in set(groups):
        assert sum(a for a, g in zip(advantages, groups, strict=True) if g == group) == pytest.approx(0, abs=1e-4)


def test_the_gradient_of_four_tokens() -> None:
    """d loss / d logprob = -r·A / 4 where the minimum is the unclipped branch, and 0 where it is clipped."""
    ratios = torch.tensor([1.1, 1.5, 0.5, 1.5])
    advantages = torch.tensor([2.0, 1.0, -3.0, -1.0])
    behaviour = torch.tensor([-1.0, -2.0, -0.5, -3.0])
    logprobs = (behaviour + ratios.log()).requires_grad_()
    outcome = policy_loss(logprobs, behaviour, advantages, params=PARAMS, num_tokens=4)
    outcome.loss.backward()  # type: ignore[no-untyped-call]
    # 1: inside the band. 2: good, already above it. 3: bad, already below it. 4: bad and above: still pushed down.
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([-1.1 * 2 / 4, 0.0, 0.0, 1.5 / 4], abs=1e-6)
    assert outcome.loss.item() == pytest.approx(-(1.1 * 2 + 1.28 - 0.8 * 3 - 1.5) / 4, abs=1e-6)
    metrics = {name: value.item() for name, value in outcome.metrics.items()}
    assert metrics["clip_fraction"] == 0.5
    assert metrics["ratio_mean"] == pytest.approx(4.6 / 4)
    assert metrics["logprob_gap"] == pytest.approx(sum(abs(math.log(r)) for r in ratios.tolist()) / 4, abs=1e-6)
    assert metrics["behaviour_kl"] == pytest.approx(sum(r - 1 - math.log(r) for r in ratios.tolist()) / 4, abs=1e-6)


def test_parts_of_a_step_add_up_to_the_step() -> None:
    torch.manual_seed(0)
    logprobs, behaviour, advantages = -torch.rand(9), -torch.rand(9), torch.randn(9)
    whole = policy_loss(logprobs, behaviour, advantages, params=PARAMS, num_tokens=9)
    parts = [
        policy_loss(logprobs[cut], behaviour[cut], advantages[cut], params=PARAMS, num_tokens=9)
        for cut in (slice(0, 4), slice(4, 9))
    ]
    torch.testing.assert_close(sum(part.loss for part in parts), whole.loss)
    for name, value in whole.metrics.items():
        torch.testing.assert_close(sum(part.metrics[name] for part in parts), value)


def test_an_absurd_ratio_with_no_advantage_is_harmless() -> None:
    logprobs = torch.tensor([0.0], requires_grad=True)
    outcome = policy_loss(logprobs, torch.tensor([-1e4]), torch.tensor([0.0]), params=PARAMS, num_tokens=1)
    outcome.loss.backward()  # type: ignore[no-untyped-call]
    assert outcome.loss.item() == 0.0
    assert logprobs.grad is not None and logprobs.grad.item() == 0.0
