"""The difference that rounding alone causes between the log-probs of one token in two correct programs.

    N tokens    V vocabulary    B bins    u the largest relative error of a number written in a dtype

A logit is a sum of products, each with an independent relative error ρ (`of_terms`). The logit's error is then ρ times
the root of the sum of their squares, which is ρ·σ: σ is the spread of the logits over the vocabulary, because words
unrelated to the position sum as many terms of that size with random signs. A likely word's logit is far beyond σ since
its terms have one sign, but its error is no larger. Writing the logit in a dtype adds a relative error (`of_logits`).

A log-prob is its logit less the log-sum-exp, whose error is the mean of the logits' errors under the policy. With equal
errors e of all logits, the log-prob's error is e·√((1 - p)² + Σ p_v²) over the other words, at most √2·(1 - p)·e: a
certain token has only the error of the sum of exponentials.

Tokens' errors are normally distributed with these deviations, so the share of tokens beyond a gap, and the gap that
one in ten exceeds, follow from a histogram of the deviations.

Invariant: no constant here was fitted to a gap. ρ is u·√(2L + 8) for each program: the stream through L layers is
written 2L times, the branches added to it are each a part of it (six results in a row per branch), norm and head come
last, all independent. u is used as the deviation of a rounding, which is at most u/√3.
"""

import math
from dataclasses import dataclass
from typing import Final, Self

import torch
from torch import Tensor

from engine.fit.shape import ModelShape

ONE_IN_TEN: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounding:
    """The errors of two programs together, as relative deviations."""

    of_terms: float
    of_logits: float
    vocab_size: int

    @classmethod
    def between(cls, shape: ModelShape, *, published: torch.dtype, products: torch.dtype) -> Self:
        """Between rollouts in the weights' `published` dtype and a trainer in the dtype of its `products`. Sums of K
        products are made in float32, with an error of √K times its u."""
        heads = shape.num_heads * shape.head_dim
        num_terms = 3 * shape.width + shape.head_dim + heads + shape.mlp_width
        of_sums = num_terms * _unit(torch.float32) ** 2
        squares = [_unit(dtype) ** 2 for dtype in (published, products)]
        return cls(
            of_terms=math.sqrt(sum((2 * shape.num_layers + 8) * square + of_sums for square in squares)),
            of_logits=math.sqrt(sum(squares)),
            vocab_size=shape.vocab_size,
        )

    def deviations(self, logprobs_N: Tensor, logits_N2: Tensor) -> Tensor:
        """`logits_N2`: the spread of a token's logits, and the larger of its logit and log-sum-exp by size. The result
        is 0 if one of them is not finite: rounding explains nothing there."""
        spread_N, size_N = logits_N2.double().nan_to_num(nan=math.nan, posinf=math.nan).unbind(1)
        of_logit_N = (self.of_terms * spread_N).square() + (self.of_logits * size_N).square()
        others_N = -torch.expm1(logprobs_N.double())
        # Both programs add up V exponentials, and subtract the result, in float32.
        of_softmax_N = 2 * _unit(torch.float32) ** 2 * (self.vocab_size + size_N.square())
        return (2 * others_N.square() * of_logit_N + of_softmax_N).sqrt().nan_to_num()


def share_beyond(gaps_B: Tensor, deviations_B: Tensor, counts_B: Tensor) -> Tensor:
    """For each gap, the share of tokens whose rounding error exceeds it; `counts_B` tokens have each deviation."""
    beyond_BB = torch.erfc(gaps_B.unsqueeze(1) / (math.sqrt(2) * deviations_B))
    return (beyond_BB * counts_B).sum(dim=1) / counts_B.sum()


def _unit(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps / 2
