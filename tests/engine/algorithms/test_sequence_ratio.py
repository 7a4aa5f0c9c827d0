"""A ratio of whole trajectories with weights and advantages of single tokens, against hand-computed numbers.

One trajectory of four tokens. The trained policy gives each a probability of e^-1; the writer gave the last one e^-4,
so its weight is e^3 and the trajectory's ratio to the writer is e^(3/4).
"""

import math

import pytest
import torch
from torch import Tensor

from engine.algorithms.loss import LossTokens, policy_loss
from engine.spec.job import AlgorithmSpec, CorrectionSpec, TeacherSpec
from engine.spec.recipes import AlgorithmName, CorrectionName

WRITER = [-1.0, -1.0, -1.0, -4.0]


def gradient_of(
    correction: CorrectionName,
    *,
    name: AlgorithmName = "gspo",
    behaviour: list[float] = WRITER,
    step_begin: list[float] | None = None,
    advantages: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0),
    teacher: Tensor | None = None,
) -> list[float]:
    spec = AlgorithmSpec(
        name=name,
        clip_low=0.9,
        clip_high=10.0,
        correction=CorrectionSpec(name=correction),
        teacher=TeacherSpec(source="demo", coefficient=0.5),
    )
    logprobs = torch.full((4,), -1.0, requires_grad=True)
    tokens = LossTokens(
        behaviour_logprobs_N=torch.tensor(behaviour),
        advantages_N=torch.tensor(advantages),
        shares_N=torch.full((4,), 0.25),
        staleness_N=torch.full((4,), 2),
        rows_N=torch.zeros(4, dtype=torch.int64),
        num_rows=1,
        step_begin_logprobs_N=None if step_begin is None else torch.tensor(step_begin),
        teacher_logprobs_N=teacher,
    )
    policy_loss(logprobs, torch.zeros(4), tokens, spec=spec, num_tokens=4).loss.backward()  # type: ignore[no-untyped-call]
    assert logprobs.grad is not None
    return [-4.0 * each for each in logprobs.grad.tolist()]


# Token t has the gradient r · w[t]: the trajectory's ratio times the token's weight.
CORRECTED: dict[CorrectionName, list[float]] = {
    "none": [math.exp(0.75)] * 4,
    "truncated": [1.0, 1.0, 1.0, 2.0],
    "masked": [1.0, 1.0, 1.0, 0.0],
    "icepop": [1.0, 1.0, 1.0, 0.0],
    "decoupled": [1.0, 1.0, 1.0, 0.0],
    # Each of two versions made half of the change: r = e^(1.5 / 4), and the last weight e^1.5 is above the cap.
    "a3po": [math.exp(0.375)] * 3 + [0.0],
}


@pytest.mark.parametrize("correction", CORRECTED)
def test_correction_weighs_its_own_token_only(correction: CorrectionName) -> None:
    assert gradient_of(correction) == pytest.approx(CORRECTED[correction], abs=1e-5)


@pytest.mark.parametrize(("correction", "last"), [("truncated", 2.0), ("masked", 0.0), ("decoupled", 0.0)])
def test_moved_policy_has_ratio_to_step_begin(correction: CorrectionName, last: float) -> None:
    """The first token has moved by e^0.4 within the step: r = e^(0.4 / 4), with the weights of its beginning."""
    gradient = gradient_of(correction, behaviour=[-1.4, -1.0, -1.0, -4.0], step_begin=[-1.4, -1.0, -1.0, -1.0])
    assert gradient == pytest.approx([math.exp(0.1) * weight for weight in (1.0, 1.0, 1.0, last)], abs=1e-5)


def test_advantage_of_a_token_stays_with_that_token() -> None:
    gradient = gradient_of("none", advantages=(1.0, -1.0, 0.0, 2.0))
    assert gradient == pytest.approx([math.exp(0.75) * each for each in (1.0, -1.0, 0.0, 2.0)], abs=1e-5)
    teacher = torch.tensor([-1.0, -3.0, -0.5, -1.0])  # 1 - 0.5 · (log π - log π_T)
    gradient = gradient_of("none", teacher=teacher)
    assert gradient == pytest.approx([math.exp(0.75) * each for each in (1.0, 0.0, 1.25, 1.0)], abs=1e-5)


def test_gspo_with_aipo_would_be_grpo_with_aipo() -> None:
    """This is why such a spec is refused; the refusal offers GRPO instead."""
    assert gradient_of("aipo") == gradient_of("aipo", name="grpo")
