"""Losses and advantages against hand-computed numbers. Gradients are of four tokens: three of one answer, one of
another."""

import itertools
import math
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine.algorithms.advantages import find_advantages, generalised_advantages, group_advantages, overlong_penalty
from engine.algorithms.loss import LossTokens, PolicyLoss, policy_loss, token_shares
from engine.algorithms.values import value_loss
from engine.spec.job import AlgorithmSpec, CorrectionSpec, KlSpec, TeacherSpec
from engine.spec.recipes import RECIPES, AlgorithmName, CorrectionName

LENGTHS = [3, 1]
MAX_NEW_TOKENS = 5
BEHAVIOUR = torch.tensor([-1.0, -2.0, -0.5, -3.0])
UNCORRECTED = CorrectionSpec(name="none")


def loss_of(
    spec: AlgorithmSpec,
    ratios: list[float],
    advantages: list[float],
    *,
    staleness: list[int] | None = None,
    reference: Tensor | None = None,
    teacher: Tensor | None = None,
    step_begin_ratios: list[float] | None = None,
) -> tuple[PolicyLoss, list[float]]:
    """The loss and its gradient, given ratios of the trained policy (and the step's first policy) to the writer."""
    logprobs = (BEHAVIOUR + torch.tensor(ratios).log()).requires_grad_()
    shares = token_shares(LENGTHS, mean=RECIPES[spec.name].mean, max_new_tokens=MAX_NEW_TOKENS)
    step_begin = None if step_begin_ratios is None else BEHAVIOUR + torch.tensor(step_begin_ratios).log()
    tokens = LossTokens(
        behaviour_logprobs_N=BEHAVIOUR,
        advantages_N=torch.tensor(advantages),
        shares_N=torch.tensor(shares).repeat_interleave(torch.tensor(LENGTHS)),
        staleness_N=torch.tensor(staleness or [0, 0, 0, 0]),
        rows_N=torch.tensor([0, 0, 0, 1]),
        num_rows=2,
        reference_logprobs_N=reference,
        step_begin_logprobs_N=step_begin,
        teacher_logprobs_N=teacher,
    )
    outcome = policy_loss(logprobs, torch.zeros(4), tokens, spec=spec, num_tokens=4)
    outcome.loss.backward()  # type: ignore[no-untyped-call]
    assert logprobs.grad is not None
    return outcome, logprobs.grad.tolist()


# Ratios 1.1, 1.5, 0.5, 1.5 and advantages 2, 1, -3, -1: inside the band; good and already above it; bad and already
# below it; bad and above, so still pushed down. Before shares, the gradient -r·A is -2.2, 0, 0, 1.5.
HAND_GRADIENTS: dict[AlgorithmName, list[float]] = {
    "grpo": [-2.2 / 6, 0.0, 0.0, 1.5 / 2],
    "dr_grpo": [-2.2 / 10, 0.0, 0.0, 1.5 / 10],
    "dapo": [-2.2 / 4, 0.0, 0.0, 1.5 / 4],
    "cispo": [-1.1 * 2 / 4, -1.28 / 4, 0.5 * 3 / 4, 1.28 / 4],
    "rloo": [-2.2 / 4, 0.0, 0.0, 1.5 / 4],
    "reinforce_pp": [-2.2 / 4, 0.0, 0.0, 1.5 / 4],
    "ppo": [-2.2 / 4, 0.0, 0.0, 1.5 / 4],
}


@pytest.mark.parametrize("name", HAND_GRADIENTS)
def test_the_gradient_of_four_tokens(name: AlgorithmName) -> None:
    clip_high = 0.28 if name == "cispo" else None  # its own bound is beyond these ratios
    spec = AlgorithmSpec(name=name, clip_high=clip_high, correction=UNCORRECTED)
    outcome, gradient = loss_of(spec, [1.1, 1.5, 0.5, 1.5], [2.0, 1.0, -3.0, -1.0])
    assert gradient == pytest.approx(HAND_GRADIENTS[name], abs=1e-6)
    clipped = (0.0, 2.0) if name == "cispo" else (1.0, 1.0)  # CISPO's clip makes weights smaller, from above only
    assert (outcome.sums["clip_low"].item(), outcome.sums["clip_high"].item()) == clipped


def test_the_gradient_of_gspo_is_of_whole_answers() -> None:
    """The first answer's three tokens share (1.1 · 1.5 · 0.5)^⅓ = 0.937926; the other answer's token has 1.5."""
    spec = AlgorithmSpec(name="gspo", clip_low=0.2, clip_high=0.28, correction=UNCORRECTED)
    _, gradient = loss_of(spec, [1.1, 1.5, 0.5, 1.5], [2.0, 2.0, 2.0, -1.0])
    assert gradient == pytest.approx([-0.9378888 * 2 / 3 / 2] * 3 + [1.5 / 2], abs=1e-5)
    narrow = AlgorithmSpec(name="gspo", correction=UNCORRECTED)
    _, clipped = loss_of(narrow, [1.1, 1.5, 0.5, 1.5], [-2.0, -2.0, -2.0, 1.0])
    assert clipped == [0.0] * 4  # GSPO's own band is 3e-4 below and 4e-4 above


def test_loss_and_sums_of_four_tokens() -> None:
    spec = AlgorithmSpec(name="dapo", correction=UNCORRECTED)
    outcome, _ = loss_of(spec, [1.1, 1.5, 0.5, 1.5], [2.0, 1.0, -3.0, -1.0], staleness=[0, 0, 1, 1])
    assert outcome.loss.item() == pytest.approx(-(1.1 * 2 + 1.28 - 0.8 * 3 - 1.5) / 4, abs=1e-6)
    sums = {name: value.item() for name, value in outcome.sums.items()}
    ratios = [1.1, 1.5, 0.5, 1.5]
    assert sums["ratio"] == pytest.approx(4.6)
    assert sums["ratio_squared"] == pytest.approx(1.21 + 2.25 + 0.25 + 2.25)
    assert sums["behaviour_kl"] == pytest.approx(sum(r - 1 - math.log(r) for r in ratios), abs=1e-6)
    assert outcome.peaks["ratio_max"].item() == pytest.approx(1.5)


# Ratios 1.1, 1.5, 0.5, 3 to the writer, advantages 2, 1, -3, -1, staleness 0, 1, 2, 4.
HAND_CORRECTIONS: dict[CorrectionName, tuple[CorrectionSpec, list[float]]] = {
    "none": (UNCORRECTED, [-2.2, 0.0, 0.0, 3.0]),
    "truncated": (CorrectionSpec(name="truncated"), [-2.2, -1.5, 1.5, 2.0]),
    "masked": (CorrectionSpec(name="masked"), [-2.2, -1.5, 1.5, 0.0]),
    "icepop": (CorrectionSpec(name="icepop", low=0.6), [-2.2, -1.5, 0.0, 3.0]),
    "decoupled": (CorrectionSpec(name="decoupled"), [-2.2, -1.5, 1.5, 0.0]),
    # Proximal policies 0, 0, ½ and ¾ of the way: r is 1.1, 1.5 (clipped), √½ (clipped), 3^¼, and 3^¾ = 2.28 weighs it.
    "a3po": (CorrectionSpec(name="a3po", cap=2.5), [-2.2, 0.0, 0.0, 3.0]),
    "aipo": (CorrectionSpec(name="aipo"), [-2.2, -1.5, 1.5, 2.0]),
}


def test_default_weight_cap_is_two_and_five_for_cispo() -> None:
    ratios, advantages, staleness = [1.0, 0.5, 1.5, 9.0], [1.0, 1.0, 1.0, 1.0], [0, 4, 4, 8]
    _, gradient = loss_of(AlgorithmSpec(name="dapo"), ratios, advantages, staleness=staleness)
    assert gradient == pytest.approx([-weight / 4 for weight in (1.0, 0.5, 1.5, 2.0)], abs=1e-6)
    _, gradient = loss_of(AlgorithmSpec(name="cispo"), ratios, advantages, staleness=staleness)
    assert gradient == pytest.approx([-weight / 4 for weight in (1.0, 0.5, 1.5, 5.0)], abs=1e-6)


@pytest.mark.parametrize("name", HAND_CORRECTIONS)
def test_the_gradient_of_four_corrected_tokens(name: CorrectionName) -> None:
    correction, expected = HAND_CORRECTIONS[name]
    spec = AlgorithmSpec(name="dapo", correction=correction)
    _, gradient = loss_of(spec, [1.1, 1.5, 0.5, 3.0], [2.0, 1.0, -3.0, -1.0], staleness=[0, 1, 2, 4])
    assert gradient == pytest.approx([value / 4 for value in expected], abs=1e-6)


def test_a3po_clips_change_per_version_and_drops_above_cap() -> None:
    spec = AlgorithmSpec(name="dapo", correction=CorrectionSpec(name="a3po"))
    outcome, gradient = loss_of(spec, [1.44, 1.44, 0.81, 3.0], [1.0, 1.0, 1.0, -1.0], staleness=[1, 2, 2, 4])
    # 1.44 in one version is clipped, in two it is 1.2 each; 0.9 twice; 3^¾ is above the cap of 2.
    assert gradient == pytest.approx([0.0, -1.44 / 4, -0.81 / 4, 0.0], abs=1e-6)
    assert outcome.sums["corrected_away"] == 1
    assert outcome.sums["correction_weight"].item() == pytest.approx(1.0 + 1.2 + 0.9, abs=1e-5)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("truncated", [1.21, 2.2, 0.55, 0.0]),
        ("masked", [1.21, 0.0, 0.55, 0.0]),
        ("decoupled", [1.21, 0.0, 0.55, 0.0]),
        ("aipo", [1.21, 2.0, 0.55, 1.5]),
    ],
)
def test_corrections_differ_once_the_policy_has_moved_in_a_step(name: CorrectionName, expected: list[float]) -> None:
    """First weights to writer 1.1, 3, 0.5, 1; from there on 1.1, 1.1, 1.1 and 1.5, which only AIPO does not clip."""
    spec = AlgorithmSpec(name="dapo", correction=CorrectionSpec(name=name))
    _, gradient = loss_of(spec, [1.21, 3.3, 0.55, 1.5], [1.0] * 4, step_begin_ratios=[1.1, 3.0, 0.5, 1.0])
    assert gradient == pytest.approx([-value / 4 for value in expected], abs=1e-6)


@pytest.mark.parametrize(
    ("estimator", "expected", "counted"),
    [
        ("k1", [0.0] * 4, -1.0),
        ("k2", [-0.5, 0.5, 0.0, -1.0], 0.75),
        ("k3", [1 - math.exp(0.5), 1 - math.exp(-0.5), 0.0, 1 - math.e], 2 * math.cosh(0.5) + 1 + math.e - 4 - 1),
    ],
)
def test_the_gradient_of_the_distance_to_a_reference(estimator: str, expected: list[float], counted: float) -> None:
    spec = AlgorithmSpec(name="dapo", kl=KlSpec.model_validate({"coefficient": 0.2, "estimator": estimator}))
    reference = BEHAVIOUR + torch.tensor([0.5, -0.5, 0.0, 1.0])
    outcome, gradient = loss_of(spec, [1.0] * 4, [0.0] * 4, reference=reference)
    assert gradient == pytest.approx([0.2 * value / 4 for value in expected], abs=1e-6)
    assert outcome.sums["kl"].item() == pytest.approx(counted, abs=1e-6)


def test_the_gradient_of_the_distance_to_a_teacher() -> None:
    """Without rewards, on fresh tokens: c·(log π - log π_T)·∇log π per token. With rewards, both are one advantage. An
    old token is weighted."""
    teacher = BEHAVIOUR + torch.tensor([0.5, -0.5, 0.0, 30.0])  # the gap is bounded at 20
    spec = AlgorithmSpec(name="dapo", teacher=TeacherSpec(source="demo", coefficient=0.2))
    outcome, gradient = loss_of(spec, [1.0] * 4, [0.0] * 4, teacher=teacher)
    assert gradient == pytest.approx([0.2 * gap / 4 for gap in (-0.5, 0.5, 0.0, -20.0)], abs=1e-6)
    assert outcome.sums["teacher_kl"].item() == pytest.approx(-20.0, abs=1e-5)
    _, gradient = loss_of(spec, [1.0] * 4, [1.0, -1.0, 2.0, 0.0], teacher=teacher)
    assert gradient == pytest.approx([-each / 4 for each in (1.1, -1.1, 2.0, 4.0)], abs=1e-6)
    moved = BEHAVIOUR + torch.tensor([0.5, 1.5, 0.5, 9.0]).log()
    _, gradient = loss_of(spec, [0.5, 1.5, 0.5, 9.0], [0.0] * 4, teacher=moved - 1.0, staleness=[1, 4, 4, 8])
    assert gradient == pytest.approx([0.2 * weight / 4 for weight in (0.5, 1.5, 0.5, 2.0)], abs=1e-6)


def test_a_teachers_advantage_is_clipped_with_the_rewards() -> None:
    """The ratio to π_prox is 1.5, 1.5, 0.5, 0.5; the sign of the summed advantages decides whether it is clipped."""
    ratios, rewards = [1.5, 1.5, 0.5, 0.5], [1.0, -1.0, 1.0, -1.0]
    teacher = BEHAVIOUR + torch.tensor(ratios).log() + torch.tensor([-3.0, 3.0, -3.0, 3.0])
    spec = AlgorithmSpec(name="dapo", correction=UNCORRECTED, teacher=TeacherSpec(source="demo"))
    _, gradient = loss_of(spec, ratios, rewards, teacher=teacher)
    assert gradient == pytest.approx([1.5 * 2 / 4, 0.0, 0.0, -0.5 * 2 / 4], abs=1e-5)


def test_entropy_is_rewarded_by_its_mean_over_tokens() -> None:
    entropies = torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    tokens = LossTokens(
        behaviour_logprobs_N=BEHAVIOUR,
        advantages_N=torch.zeros(4),
        shares_N=torch.ones(4),
        staleness_N=torch.zeros(4),
        rows_N=torch.tensor([0, 0, 0, 1]),
        num_rows=2,
    )
    spec = AlgorithmSpec(entropy_coefficient=0.1)
    outcome = policy_loss(BEHAVIOUR, entropies, tokens, spec=spec, num_tokens=4)
    outcome.loss.backward()  # type: ignore[no-untyped-call]
    assert outcome.loss.item() == pytest.approx(-0.25)
    assert entropies.grad is not None and entropies.grad.tolist() == pytest.approx([-0.025] * 4)


@pytest.mark.parametrize(("algorithm", "correction"), list(itertools.product(RECIPES, get_args(CorrectionName))))
def test_extreme_logprobs_give_finite_loss_and_gradient(algorithm: AlgorithmName, correction: CorrectionName) -> None:
    """A branch that is not selected, or is multiplied by zero, must be finite too."""
    logprobs = torch.tensor([0.0, -1e4, -1e-9, -1e4], requires_grad=True)
    tokens = LossTokens(
        behaviour_logprobs_N=torch.tensor([-1e4, 0.0, -math.inf, -1e4]),
        advantages_N=torch.tensor([0.0, 1.0, -1.0, 0.0]),
        shares_N=torch.ones(4) / 4,
        staleness_N=torch.tensor([0, 1, 2, 3]),
        rows_N=torch.tensor([0, 0, 0, 1]),
        num_rows=2,
        reference_logprobs_N=torch.tensor([-1e5, 0.0, -math.inf, 0.0]),
        teacher_logprobs_N=torch.tensor([-math.inf, 0.0, -1e5, 0.0]),
    )
    spec = AlgorithmSpec(
        name=algorithm,
        correction=CorrectionSpec(name=correction),
        kl=KlSpec(coefficient=0.1),
        teacher=TeacherSpec(source="demo"),
    )
    outcome = policy_loss(logprobs, torch.zeros(4), tokens, spec=spec, num_tokens=4)
    outcome.loss.backward()  # type: ignore[no-untyped-call]
    assert torch.isfinite(outcome.loss)
    assert logprobs.grad is not None and torch.isfinite(logprobs.grad).all()


@pytest.mark.parametrize("name", RECIPES)
def test_losses_of_micro_batches_add_up_to_the_step(name: AlgorithmName) -> None:
    """Each part holds whole answers."""
    torch.manual_seed(0)
    logprobs, behaviour, advantages = -torch.rand(9), -torch.rand(9), torch.randn(9)
    lengths, spec = [4, 5], AlgorithmSpec(name=name)
    shares = torch.tensor(token_shares(lengths, mean=RECIPES[name].mean, max_new_tokens=8))

    def part(start: int, end: int, rows: list[int]) -> PolicyLoss:
        tokens = LossTokens(
            behaviour_logprobs_N=behaviour[start:end],
            advantages_N=advantages[start:end],
            shares_N=shares.repeat_interleave(torch.tensor(lengths))[start:end],
            staleness_N=torch.zeros(end - start),
            rows_N=torch.tensor(rows),
            num_rows=max(rows) + 1,
        )
        return policy_loss(logprobs[start:end], torch.ones(end - start), tokens, spec=spec, num_tokens=9)

    whole, parts = part(0, 9, [0] * 4 + [1] * 5), [part(0, 4, [0] * 4), part(4, 9, [0] * 5)]
    torch.testing.assert_close(sum(each.loss for each in parts), whole.loss)
    for counted, value in whole.sums.items():
        torch.testing.assert_close(sum(each.sums[counted] for each in parts), value)


def test_critic_loss_takes_worse_of_value_and_clipped_value() -> None:
    """Squared errors 1, 4, 0, 1; of values clipped to moves of 0.2: 1, 1.44, 0.09, 1. The third has no gradient."""
    values = torch.tensor([1.0, 2.0, 3.0, 0.0], requires_grad=True)
    returns = torch.tensor([2.0, 0.0, 3.0, 1.0])
    outcome = value_loss(values, torch.tensor([1.0, 1.0, 3.5, 0.0]), returns, clip=0.2, num_tokens=4)
    outcome.loss.backward()  # type: ignore[no-untyped-call]
    assert outcome.loss.item() == pytest.approx((1 + 4 + 0.09 + 1) / 8)
    assert values.grad is not None and values.grad.tolist() == pytest.approx([-0.25, 0.5, 0.0, -0.25])


# Advantages -----------------------------------------------------------------------------------------------------------


def test_explained_variance_is_exact_for_large_returns() -> None:
    """Returns near 1 that differ by 1e-4: in float32, rounding of the sum of squares would be as large."""
    returns = 1.0 + 1e-4 * torch.arange(300.0) / 300
    sums = value_loss(torch.zeros(300), torch.zeros(300), returns, clip=0.2, num_tokens=300).sums
    variance = sums["return_squared"] / 300 - (sums["return"] / 300) ** 2
    assert variance.item() == pytest.approx(returns.double().var(correction=0).item(), rel=1e-6)


def test_advantages_are_within_the_group() -> None:
    rewards = torch.tensor([1.0, 5.0, 0.0, 5.0, 0.0, 8.0])
    groups = torch.tensor([4, 9, 4, 9, 4, 9])  # with means 1/3 and 6
    low, high = 1 / math.sqrt(1 / 3), 2 / math.sqrt(3)
    scaled = [low * 2 / 3, -high / 2, -low / 3, -high / 2, -low / 3, high]
    assert group_advantages(rewards, groups, "group_std").tolist() == pytest.approx(scaled, abs=1e-5)
    assert group_advantages(rewards, groups, "group_mean").tolist() == pytest.approx([2 / 3, -1, -1 / 3, -1, -1 / 3, 2])
    others = [1 - 0, 5 - 6.5, 0 - 0.5, 5 - 6.5, 0 - 0.5, 8 - 5]
    assert group_advantages(rewards, groups, "leave_one_out").tolist() == pytest.approx(others)


@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, 1e9])
@pytest.mark.parametrize("kind", ["group_std", "group_mean", "leave_one_out"])
def test_group_of_equal_rewards_has_zero_advantages(reward: float, kind: str) -> None:
    rewards, groups = torch.tensor([reward] * 7 + [0.0, 1.0, 3.0]), torch.tensor([1] * 7 + [2, 2, 3])
    advantages = group_advantages(rewards, groups, kind).tolist()  # type: ignore[arg-type]
    assert advantages[:7] == [0.0] * 7 and advantages[9] == 0.0


@given(st.lists(st.tuples(st.floats(-10, 10, width=16), st.integers(0, 4)), min_size=1, max_size=30))
def test_advantages_of_a_group_add_up_to_zero(rows: list[tuple[float, int]]) -> None:
    rewards, groups = torch.tensor([reward for reward, _ in rows]), torch.tensor([group for _, group in rows])
    advantages = group_advantages(rewards, groups, "group_std")
    for group in set(groups.tolist()):
        assert advantages[groups == group].sum().item() == pytest.approx(0, abs=1e-4)


def test_gae_of_three_tokens_and_one() -> None:
    """Surprises -0.14, -0.22, 0.8; each adds 0.9 · 0.8 of the next advantage. Trajectories are independent."""
    rewards = torch.tensor([0.0, 0.0, 1.0, 2.0])
    values = torch.tensor([0.5, 0.4, 0.2, 0.5])
    advantages = generalised_advantages(rewards, values, [3, 1], gamma=0.9, gae_lambda=0.8)
    assert advantages.tolist() == pytest.approx([-0.14 + 0.72 * 0.356, -0.22 + 0.72 * 0.8, 0.8, 1.5])
    undecayed = generalised_advantages(rewards, values, [3, 1], gamma=1.0, gae_lambda=1.0)
    assert undecayed.tolist() == pytest.approx([0.5, 0.6, 0.8, 1.5])  # return less value


def advantages_of(
    name: AlgorithmName, *, costs: list[float], values: Tensor | None = None
) -> tuple[list[float], Tensor | None]:
    lengths = [3, 1, 0]
    advantages = find_advantages(
        AlgorithmSpec(name=name),
        rewards=[1.0, 0.0, 7.0],
        groups=[0, 0, 0],
        lengths=lengths,
        costs_M=torch.tensor(costs, dtype=torch.float64),
        values_M=values,
    )
    values = advantages.values
    values_M = values if advantages.of_tokens else values.repeat_interleave(torch.tensor(lengths))
    return values_M.tolist(), advantages.returns_M


def test_costs_reduce_reward_of_token_or_trajectory() -> None:
    """The third trajectory has no written tokens, but it counts as a member of the group."""
    group, _ = advantages_of("dr_grpo", costs=[0.1, 0.2, 0.3, 0.4])
    mean = (0.4 - 0.4 + 7.0) / 3
    assert group == pytest.approx([0.4 - mean] * 3 + [-0.4 - mean])
    to_go, _ = advantages_of("reinforce_pp", costs=[0.1, 0.2, 0.3, 0.4])
    expected = torch.tensor([0.4, 0.5, 0.7, -0.4])
    assert to_go == pytest.approx(((expected - 0.3) / expected.std(correction=0)).tolist(), abs=1e-5)
    values = torch.tensor([0.5, 0.5, 0.5, 0.0])
    surprises, returns = advantages_of("ppo", costs=[0.0] * 4, values=values)
    expected = torch.tensor([0.5, 0.5, 0.5, 0.0])
    assert surprises == pytest.approx(((expected - 0.375) / expected.std(correction=0)).tolist(), abs=1e-5)
    assert returns is not None and returns.tolist() == pytest.approx([1.0, 1.0, 1.0, 0.0])


@pytest.mark.parametrize(
    ("num_tokens", "cut", "penalty"), [(60, False, 0.0), (70, False, -0.5), (80, False, -1.0), (80, True, -1.0)]
)
def test_long_answers_cost_more_the_nearer_they_come_to_the_cut(num_tokens: int, cut: bool, penalty: float) -> None:
    assert overlong_penalty(num_tokens, cut=cut, max_new_tokens=80, overlong_tokens=20) == penalty
    assert overlong_penalty(num_tokens, cut=cut, max_new_tokens=80, overlong_tokens=0) == 0.0
