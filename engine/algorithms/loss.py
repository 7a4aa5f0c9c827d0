"""One clipped policy loss. A variant is a set of parameters, not a subclass.

    N tokens of responses

    ratio r = exp(log π_θ - log μ), μ being the policy that wrote the token
    loss    = -Σ min(r·A, clip(r, 1 - low, 1 + high)·A) / num_tokens

Invariants:
- every sum is divided by `num_tokens`, the response tokens of the whole step: the losses, gradients and metrics of
  micro-batches simply add up to those of the step;
- only `loss` carries a gradient.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

_MAX_LOG_RATIO = 20.0  # exp stays finite, so that an advantage of zero times the ratio is zero and not NaN


@dataclass(frozen=True, slots=True, kw_only=True)
class LossParams:
    clip_low: float
    clip_high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoss:
    loss: Tensor
    metrics: dict[str, Tensor]


def policy_loss(
    logprobs_N: Tensor,
    behaviour_logprobs_N: Tensor,
    advantages_N: Tensor,
    *,
    params: LossParams,
    num_tokens: int,
) -> PolicyLoss:
    log_ratio_N = (logprobs_N - behaviour_logprobs_N).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    ratio_N = log_ratio_N.exp()
    clipped_N = ratio_N.clamp(1.0 - params.clip_low, 1.0 + params.clip_high)
    gain_N, clipped_gain_N = ratio_N * advantages_N, clipped_N * advantages_N
    loss = -torch.minimum(gain_N, clipped_gain_N).sum() / num_tokens
    with torch.no_grad():
        metrics = {
            "clip_fraction": (clipped_gain_N < gain_N).sum() / num_tokens,
            "ratio_mean": ratio_N.sum() / num_tokens,
            # Schulman's k3 estimate of KL(μ ‖ π_θ) from tokens that μ wrote: never negative, low variance.
            "behaviour_kl": (ratio_N - 1.0 - log_ratio_N).sum() / num_tokens,
            "logprob_gap": (logprobs_N - behaviour_logprobs_N).abs().sum() / num_tokens,
        }
    return PolicyLoss(loss=loss, metrics=metrics)
