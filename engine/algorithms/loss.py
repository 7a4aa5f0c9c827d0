"""One policy loss. An algorithm is a row of engine/spec/recipes.py, a correction one of corrections.py.

    N written tokens of one micro-batch, of R trajectories

    r    = exp(log π_θ - log π_prox), of the token or, as a geometric mean, of its whole trajectory
    loss = -Σ a·w·min(r·A, clip(r)·A) + β·Σ a·KL - η·Σ entropy / tokens of the update

a is the token's share in the update's mean (`token_shares`), w the correction's weight.

A trajectory's ratio has the value of the geometric mean and, at each token, the gradient of that token's own log π_θ
(GSPO-token, arXiv 2507.18071, section 4.3). Where w·A is equal over a trajectory, this is the gradient of the mean.
Elsewhere a token's weight or advantage affects that token only: a masked token has no gradient and leaves the others'
unchanged.

KL to the reference, with d = log π_ref - log π_θ: k1 = -d, k2 = d²/2, k3 = exp(d) - 1 - d. k2 and k3 are terms of the
loss. k1 is not, since its gradient is ∇ log π, whose mean is zero: it is a cost in the rewards (engine/training/
step/loss.py), and only measured here.

A teacher changes each token's advantage: A - c·(log π_θ - log π_T) with the difference as a constant, whose gradient is
that of KL(π_θ ‖ π_T) on the written tokens. As part of the advantage it is weighted for a token's age and clipped, as
rewards are. It is per token: no baseline, no whitening, no effect on other tokens. A token's effect on the KL of later
tokens is left out, as in prime-rl and Thinking Machines' recipe. k2 as a term would have this very gradient, without
the weight; k3's is that of the other direction, KL(π_T ‖ π_θ), and grows with π_T / π_θ.

Invariants:
- shares add up to one over an update's micro-batches and ranks, so losses, gradients and sums simply add up;
- only `loss` carries a gradient;
- no term takes the exponential of an unbounded number: 0·inf is NaN in a gradient even where the loss is finite.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.algorithms.corrections import bounded, correct
from engine.spec.job import AlgorithmSpec
from engine.spec.recipes import RECIPES, Mean


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTokens:
    """The inputs of a policy loss, except the trained log-probs."""

    behaviour_logprobs_N: Tensor
    advantages_N: Tensor
    shares_N: Tensor
    staleness_N: Tensor
    rows_N: Tensor
    """The trajectory of each token: 0 … R-1."""
    num_rows: int
    reference_logprobs_N: Tensor | None = None
    step_begin_logprobs_N: Tensor | None = None
    """By the step's first weights, if π_θ has moved since and the correction measures from them."""
    teacher_logprobs_N: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoss:
    loss: Tensor
    sums: dict[str, Tensor]
    """Sums over tokens: divided by `tokens` they are means. Exception: `loss` is the loss itself."""
    peaks: dict[str, Tensor]


def token_shares(lengths: Sequence[int], *, mean: Mean, max_new_tokens: int) -> list[float]:
    """Each trajectory's share per token in the update's mean. Trajectories without written tokens count as answers."""
    num_tokens, num_sequences = max(sum(lengths), 1), max(len(lengths), 1)
    match mean:
        case "tokens":
            return [1.0 / num_tokens] * len(lengths)
        case "sequences":
            return [1.0 / (num_sequences * max(length, 1)) for length in lengths]
        case "constant":
            return [1.0 / (num_sequences * max_new_tokens)] * len(lengths)


def policy_loss(
    logprobs_N: Tensor, entropy_N: Tensor, tokens: LossTokens, *, spec: AlgorithmSpec, num_tokens: int
) -> PolicyLoss:
    """`num_tokens`: the number of written tokens in the whole update."""
    recipe = RECIPES[spec.name]
    corrected = correct(
        logprobs_N,
        tokens.behaviour_logprobs_N,
        tokens.staleness_N,
        name=spec.corrects_by,
        spec=spec.correction,
        step_begin_logprobs_N=tokens.step_begin_logprobs_N,
    )
    log_ratio_N = bounded(logprobs_N - corrected.proximal_logprobs_N)
    if recipe.ratio == "sequence":
        mean_N = _row_means(log_ratio_N.detach(), tokens)[tokens.rows_N]
        log_ratio_N = mean_N + (log_ratio_N - log_ratio_N.detach())
    ratio_N = log_ratio_N.exp()
    low, high = spec.clips
    clipped_N = ratio_N.clamp(1.0 - low, 1.0 + high)
    gap_N, advantages_N = _gap_to_teacher(logprobs_N, tokens), tokens.advantages_N
    if gap_N is not None:
        advantages_N = advantages_N - spec.teacher.coefficient * gap_N
    if recipe.beyond_clip == "weigh":
        gain_N = clipped_N.detach() * advantages_N * logprobs_N
    else:
        gain_N = torch.minimum(ratio_N * advantages_N, clipped_N * advantages_N)
    cost_N = -corrected.weights_N * gain_N
    kl_N = _kl(logprobs_N, tokens.reference_logprobs_N, spec.kl.estimator)
    if kl_N is not None and spec.kl.estimator != "k1":
        cost_N = cost_N + spec.kl.coefficient * kl_N
    loss = (tokens.shares_N * cost_N).sum()
    if spec.entropy_coefficient:
        loss = loss - spec.entropy_coefficient * entropy_N.sum() / num_tokens
    with torch.no_grad():
        stopped = recipe.beyond_clip == "stop"
        sums = {
            "loss": loss.detach(),
            "tokens": logprobs_N.new_tensor(float(len(logprobs_N))),
            "entropy": entropy_N.sum(),
            "clip_low": ((ratio_N < 1.0 - low) & ((advantages_N < 0.0) | (not stopped))).sum(),
            "clip_high": ((ratio_N > 1.0 + high) & ((advantages_N > 0.0) | (not stopped))).sum(),
            "correction_weight": corrected.weights_N.sum(),
            "corrected_away": (corrected.weights_N == 0.0).sum(),
        }
        if kl_N is not None:
            sums["kl"] = kl_N.sum()
        if gap_N is not None:
            sums["teacher_kl"] = gap_N.sum()
        drift_sums, peaks = _drift(logprobs_N, tokens)
    return PolicyLoss(loss=loss, sums=sums | drift_sums, peaks=peaks)


def k1_cost(logprobs_N: Tensor, reference_logprobs_N: Tensor) -> Tensor:
    return logprobs_N - reference_logprobs_N


def _kl(logprobs_N: Tensor, reference_logprobs_N: Tensor | None, estimator: str) -> Tensor | None:
    if reference_logprobs_N is None:
        return None
    if estimator == "k1":
        return k1_cost(logprobs_N.detach(), reference_logprobs_N)
    apart_N = bounded(reference_logprobs_N - logprobs_N)
    return apart_N.square() / 2 if estimator == "k2" else apart_N.exp() - 1.0 - apart_N


def _gap_to_teacher(logprobs_N: Tensor, tokens: LossTokens) -> Tensor | None:
    if tokens.teacher_logprobs_N is None:
        return None
    return bounded(logprobs_N.detach() - tokens.teacher_logprobs_N)


def _row_means(x_N: Tensor, tokens: LossTokens) -> Tensor:
    zeros_R = torch.zeros(tokens.num_rows, device=x_N.device, dtype=x_N.dtype)
    sizes_R = zeros_R.index_add(0, tokens.rows_N, torch.ones_like(x_N))
    return zeros_R.index_add(0, tokens.rows_N, x_N) / sizes_R.clamp(min=1.0)


def _drift(logprobs_N: Tensor, tokens: LossTokens) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The distance of π_θ from μ."""
    log_ratio_N = bounded(logprobs_N - tokens.behaviour_logprobs_N)
    ratio_N = log_ratio_N.exp()
    sums = {
        "ratio": ratio_N.sum(),
        "ratio_squared": ratio_N.square().sum(),
        # Schulman's k3 estimate of KL(μ ‖ π_θ) from tokens that μ wrote: never negative, low variance.
        "behaviour_kl": (ratio_N - 1.0 - log_ratio_N).sum(),
    }
    none = torch.zeros_like(ratio_N.sum())
    return sums, {"ratio_max": torch.cat((ratio_N, none.unsqueeze(0))).max()}
