"""The head over a vocabulary: log-probs and entropies of N tokens, without N·V numbers at once.

    N tokens    C of one chunk    V vocabulary    D width

What autograd would keep of 8,192 tokens at a vocabulary of 151,936 is 5 GB of logits and as much of their logarithms.
Here a chunk's logits are made, used and dropped, and made again for the backward pass; of a single chunk they are kept.

Invariants:
- log-probs and entropies are float32, and belong to the temperature that was sampled with;
- products are made in `dtype`; the weight is turned into it once a pass, however many chunks there are, and its
  gradient is added up over them in float32;
- the number of chunks changes nothing but rounding.
"""

from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

# A chunk's gradient is added to all of V·D in float32. At 2,048 rows that is an eighth of what a GPU needs for the
# chunk's three products (7.6 Tflop at a width of 4,096: 19 ms at 400 Tflop/s; 6 GB: 2.4 ms); three copies of such a
# chunk take 3.7 GB. A CPU's products cost so much that a quarter of it is enough.
ROWS_ON_A_GPU: Final = 2_048
LOGITS_ON_A_CPU: Final = 2**26  # 256 MB in float32


def rows_of_a_chunk(vocab_size: int, device: torch.device) -> int:
    return ROWS_ON_A_GPU if device.type == "cuda" else max(LOGITS_ON_A_CPU // vocab_size, 1)


def head_scores(
    normed_ND: Tensor,
    weight_VD: Tensor,
    targets_N: Tensor,
    *,
    temperature: float,
    dtype: torch.dtype,
    train_entropy: bool,
    chunk: int,
) -> tuple[Tensor, Tensor]:
    """(log-probs of the targets, entropies). The entropy has a gradient only with `train_entropy`: it costs another
    pass over the logits."""
    scores: tuple[Tensor, Tensor] = _HeadScores.apply(  # type: ignore[no-untyped-call]
        normed_ND, weight_VD, targets_N, temperature, dtype, train_entropy, chunk
    )
    return scores


class _HeadScores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        normed_ND: Tensor,
        weight_VD: Tensor,
        targets_N: Tensor,
        temperature: float,
        dtype: torch.dtype,
        train_entropy: bool,
        chunk: int,
    ) -> tuple[Tensor, Tensor]:
        hidden_ND, cast_VD = normed_ND.to(dtype), weight_VD.to(dtype)
        logprobs_N = torch.empty(len(hidden_ND), device=hidden_ND.device)
        entropy_N = torch.empty_like(logprobs_N)
        all_CV = None
        for rows in _chunks(len(hidden_ND), chunk):
            all_CV = None  # the last chunk's memory, before this one's
            all_CV = _all_logprobs(hidden_ND[rows], cast_VD, temperature)
            logprobs_N[rows] = all_CV.gather(1, targets_N[rows].unsqueeze(1)).squeeze(1)
            bound_zeros(all_CV)
            entropy_N[rows] = -all_CV.exp().mul_(all_CV).sum(dim=-1)
        ctx.save_for_backward(normed_ND, weight_VD, targets_N, entropy_N, all_CV if len(hidden_ND) <= chunk else None)
        ctx.asked = temperature, dtype, train_entropy, chunk
        if not train_entropy:
            ctx.mark_non_differentiable(entropy_N)
        return logprobs_N, entropy_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_logprobs_N: Tensor, of_entropy_N: Tensor) -> tuple[Tensor | None, ...]:
        normed_ND, weight_VD, targets_N, entropy_N, kept_CV = ctx.saved_tensors
        temperature, dtype, train_entropy, chunk = ctx.asked
        hidden_ND, cast_VD = normed_ND.to(dtype), weight_VD.to(dtype)
        of_normed_ND = torch.empty_like(normed_ND)
        of_weight_VD = torch.zeros_like(weight_VD, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        for rows in _chunks(len(hidden_ND), chunk):
            all_CV = bound_zeros(_all_logprobs(hidden_ND[rows], cast_VD, temperature)) if kept_CV is None else kept_CV
            of_target_C1 = of_logprobs_N[rows].unsqueeze(1)
            # of logit v: g·(δ - p) of the log-prob, and -h·p·(log p + H) of the entropy
            of_logits_CV = all_CV.exp()
            if train_entropy:
                surprise_CV = all_CV.add_(entropy_N[rows].unsqueeze(1)).mul_(of_entropy_N[rows].unsqueeze(1))
                of_logits_CV.mul_(surprise_CV.add_(of_target_C1)).neg_()
            else:
                of_logits_CV.mul_(-of_target_C1)
            of_logits_CV.scatter_add_(1, targets_N[rows].unsqueeze(1), of_target_C1)
            of_logits_CV = of_logits_CV.div_(temperature).to(dtype)
            of_normed_ND[rows] = (of_logits_CV @ cast_VD).to(of_normed_ND.dtype)
            if of_weight_VD is not None:
                of_weight_VD += of_logits_CV.t() @ hidden_ND[rows]
        return of_normed_ND, None if of_weight_VD is None else of_weight_VD.to(weight_VD.dtype), *(None,) * 5


def bound_zeros(all_CV: Tensor) -> Tensor:
    """The logarithm of a probability of zero becomes a number, since 0·inf would be NaN."""
    return all_CV.clamp_(min=torch.finfo(torch.float32).min)


def _all_logprobs(hidden_CD: Tensor, cast_VD: Tensor, temperature: float) -> Tensor:
    return functional.log_softmax(functional.linear(hidden_CD, cast_VD).float() / temperature, dim=-1)


def _chunks(num_rows: int, chunk: int) -> list[slice]:
    return [slice(start, start + chunk) for start in range(0, num_rows, chunk)]
