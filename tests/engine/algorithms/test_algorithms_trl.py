"""Losses and gradients equal those of TRL's GRPOTrainer, for the algorithms that TRL has."""

import pytest
import torch
from torch import Tensor

from engine.algorithms.loss import LossTokens, policy_loss, token_shares
from engine.spec.job import AlgorithmSpec, CorrectionSpec, KlSpec
from engine.spec.recipes import RECIPES, AlgorithmName, CorrectionName
from tests.engine.algorithms.trl_loss import trl_loss, trl_weights

pytestmark = pytest.mark.long

# B answers, T tokens of the longest, N = 14 written tokens
MASK_BT = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0], [1, 1, 0, 1, 1, 0], [1, 1, 0, 0, 0, 0]])
LENGTHS = MASK_BT.sum(1).tolist()
MAX_NEW_TOKENS = 9


def drawn(seed: int, spread: float = 0.4) -> dict[str, Tensor]:
    """Log-probs of four similar policies, and an advantage for each answer."""
    chance = torch.Generator().manual_seed(seed)
    base = -3 * torch.rand(MASK_BT.shape, generator=chance) - 0.1
    near = [base + spread * torch.randn(MASK_BT.shape, generator=chance) for _ in range(3)]
    names = ("policy", "step_begin", "behaviour", "reference")
    return dict(zip(names, (base, *near), strict=True)) | {"advantages": torch.randn(4, generator=chance)}


def of_trl(spec: AlgorithmSpec, given: dict[str, Tensor], weights_BT: Tensor | None) -> tuple[float, Tensor]:
    logprobs_BT = given["policy"].clone().requires_grad_()
    loss = trl_loss(
        spec,
        logprobs_BT,
        mask_BT=MASK_BT,
        advantages_B=given["advantages"],
        old_logprobs_BT=given["behaviour"] if weights_BT is None else given["step_begin"],
        reference_logprobs_BT=given["reference"],
        weights_BT=weights_BT,
        max_new_tokens=MAX_NEW_TOKENS,
    )
    loss.backward()  # type: ignore[no-untyped-call]
    assert logprobs_BT.grad is not None
    return loss.item(), logprobs_BT.grad


def of_ours(spec: AlgorithmSpec, given: dict[str, Tensor]) -> tuple[float, Tensor]:
    logprobs_BT = given["policy"].clone().requires_grad_()
    written_BT = MASK_BT.bool()
    rows_N = torch.arange(4).repeat_interleave(torch.tensor(LENGTHS))
    shares = token_shares(LENGTHS, mean=RECIPES[spec.name].mean, max_new_tokens=MAX_NEW_TOKENS)
    tokens = LossTokens(
        behaviour_logprobs_N=given["behaviour"][written_BT],
        advantages_N=given["advantages"][rows_N],
        shares_N=torch.tensor(shares)[rows_N],
        staleness_N=torch.ones_like(rows_N),
        rows_N=rows_N,
        num_rows=4,
        reference_logprobs_N=given["reference"][written_BT] if spec.kl.coefficient else None,
        step_begin_logprobs_N=given["step_begin"][written_BT],
    )
    entropy_N = torch.zeros(len(rows_N))
    outcome = policy_loss(logprobs_BT[written_BT], entropy_N, tokens, spec=spec, num_tokens=len(rows_N))
    outcome.loss.backward()  # type: ignore[no-untyped-call]
    assert logprobs_BT.grad is not None
    return outcome.loss.item(), logprobs_BT.grad


@pytest.mark.parametrize("kl", [0.0, 0.3])
@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "dapo", "cispo", "gspo"])
def test_an_algorithms_loss_and_gradient_are_those_of_trl(name: AlgorithmName, kl: float) -> None:
    low = 1.0 if name == "cispo" else 0.2  # TRL bounds its weights from above only
    kl_spec, uncorrected = KlSpec(coefficient=kl, estimator="k3"), CorrectionSpec(name="none")
    spec = AlgorithmSpec(name=name, clip_low=low, clip_high=0.28, kl=kl_spec, correction=uncorrected)
    for seed in range(3):
        given = drawn(seed)
        (loss, gradient), (expected, expected_gradient) = of_ours(spec, given), of_trl(spec, given, None)
        assert loss == pytest.approx(expected, rel=1e-5)
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-5, atol=1e-7)
        assert gradient.abs().max() > 0.01


# Not gspo: TRL takes the gradient of the mean ratio, so the weight of one token reaches its whole answer.
@pytest.mark.parametrize("name", ["grpo", "dapo"])
@pytest.mark.parametrize("correction", ["truncated", "masked", "icepop"])
def test_a_corrections_loss_and_gradient_are_those_of_trl(name: AlgorithmName, correction: CorrectionName) -> None:
    spec = AlgorithmSpec(
        name=name,
        clip_low=0.2,
        clip_high=0.28,
        correction=CorrectionSpec(name=correction, cap=1.3, low=0.7, high=1.4),
    )
    for seed in range(3):
        given = drawn(seed)
        weights_BT = trl_weights(spec, (given["step_begin"] - given["behaviour"]) * MASK_BT)
        (loss, gradient), (expected, expected_gradient) = of_ours(spec, given), of_trl(spec, given, weights_BT)
        assert loss == pytest.approx(expected, rel=1e-5)
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-5, atol=1e-7)
