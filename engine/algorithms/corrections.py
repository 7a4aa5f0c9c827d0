"""Off-policy corrections for tokens that an older policy wrote: a proximal policy and an importance weight.

    μ  wrote the token        π_θ  is being trained        π_prox  is what the ratio is clipped against
    ratio r = π_θ / π_prox    weight w = rule(π_prox / μ)  both π_prox and w are constants to the gradient

    name        π_prox                    rule
    none        μ                         1
    truncated   the step's first weights  min(w, cap)
    masked      the step's first weights  w, and 0 above cap
    icepop      the step's first weights  w, and 0 outside of low … high
    decoupled   the step's first weights  w, and 0 above cap
    a3po        one version earlier       w, and 0 above cap
    aipo        π_θ itself                min(w, cap)

The step's first weights as π_prox: decoupled PPO clips against a recent policy, so that old tokens are not clipped for
being old, and corrects for their age by a weight. The log-probs of π_prox are computed without gradients before the
first update, and only if the step has several: in the first update the step's first weights *are* π_θ when the gradient
is taken, so log π_prox is log π_θ as a constant, r is 1, and nothing is clipped. A step of one update is therefore the
policy gradient with a bounded importance weight, for every rule that measures from the step's first weights and for
AIPO; they differ only in how they bound the weight. From the second update on, r is the step's change so far. AIPO,
whose weight follows π_θ, bounds this change by its cap only; the others clip it and keep the weight of the step's
beginning.

masked and decoupled are the same rule, published twice: decoupled PPO has no cap in its paper, and AReaL, which trains
with it, drops tokens above one.

A-3PO has a trust region in the first update too. It puts π_prox one version before π_θ, by interpolation instead of a
forward pass: log π_prox = log μ + a·(log π_θ - log μ), a = (v_prox - v_μ) / (v_θ - v_μ) = (s - 1) / s for a token of
staleness s. The clip then bounds r = (π_θ/μ)^(1/s), the mean change per version, and the weight
w = (π_θ/μ)^((s-1)/s) covers the rest. For a token of staleness 0 the proximal policy is its writer (a = 0).

GSPO measures its ratio of whole trajectories from the same π_prox; weights stay per token (engine/algorithms/loss.py).
AIPO's ratio is always 1, so AIPO with GSPO is refused (engine/spec/settings/conflicts.py).

Invariants:
- results carry no gradient and are finite for finite log-probs;
- where π_θ, π_prox and μ agree, every weight is exactly 1.
"""

from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

from engine.spec.job import CorrectionSpec
from engine.spec.recipes import CorrectionName

MAX_LOG_RATIO: Final = 20.0  # exp stays finite, so that an advantage of zero times a ratio is zero and not NaN


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    proximal: Literal["writer", "step_begin", "version_before", "learner"]
    weight: Literal["one", "cap", "drop", "band"]


_RULES: Final[dict[CorrectionName, _Rule]] = {
    "none": _Rule(proximal="writer", weight="one"),
    "truncated": _Rule(proximal="step_begin", weight="cap"),
    "masked": _Rule(proximal="step_begin", weight="drop"),
    "icepop": _Rule(proximal="step_begin", weight="band"),
    "decoupled": _Rule(proximal="step_begin", weight="drop"),
    "a3po": _Rule(proximal="version_before", weight="drop"),
    "aipo": _Rule(proximal="learner", weight="cap"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrected:
    proximal_logprobs_N: Tensor
    weights_N: Tensor


@torch.no_grad()
def correct(
    logprobs_N: Tensor,
    behaviour_logprobs_N: Tensor,
    staleness_N: Tensor,
    *,
    name: CorrectionName,
    spec: CorrectionSpec,
    step_begin_logprobs_N: Tensor | None = None,
) -> Corrected:
    """`name`: from `spec`, or the algorithm's default. `step_begin_logprobs_N`: given only once π_θ has moved within
    the step, for a correction that `measures_from_start`."""
    rule = _RULES[name]
    learner_N = logprobs_N.detach()
    match rule.proximal:
        case "writer":
            proximal_N = behaviour_logprobs_N
        case "step_begin":
            proximal_N = learner_N if step_begin_logprobs_N is None else step_begin_logprobs_N
        case "learner":
            proximal_N = learner_N
        case "version_before":
            place_N = (staleness_N - 1).clamp(min=0) / staleness_N.clamp(min=1)
            proximal_N = learner_N - (1.0 - place_N) * bounded(learner_N - behaviour_logprobs_N)
    weights_N = bounded(proximal_N - behaviour_logprobs_N).exp()
    match rule.weight:
        case "one":
            weights_N = torch.ones_like(weights_N)
        case "cap":
            weights_N = weights_N.clamp(max=spec.cap)
        case "drop":
            weights_N = torch.where(weights_N <= spec.cap, weights_N, 0.0)
        case "band":
            weights_N = torch.where((weights_N >= spec.low) & (weights_N <= spec.high), weights_N, 0.0)
    return Corrected(proximal_logprobs_N=proximal_N, weights_N=weights_N)


def measures_from_start(name: CorrectionName) -> bool:
    """True if the correction needs log-probs of the step's first weights once π_θ has moved from them."""
    return _RULES[name].proximal == "step_begin"


def bounded(log_ratio_N: Tensor) -> Tensor:
    return log_ratio_N.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
