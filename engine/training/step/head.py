"""The head over the vocabulary: log-probs and entropies of N tokens, without N·V numbers at once.

    N tokens    C of one chunk    V vocabulary    D width    W words of a sample of it

For 8,192 tokens and a vocabulary of 151,936, autograd would keep 5 GB of logits and as much of log-probs. Here a
chunk's logits are computed, used and freed, and recomputed for the backward pass; a single chunk is kept.

Invariants:
- log-probs and entropies are float32, at the sampling temperature;
- products are computed in `dtype`; the weight is cast once per pass, for all chunks, and its gradient is summed over
  chunks in float32;
- the number of chunks affects only rounding.
"""

from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

# A chunk's gradient is added to all of V·D in float32. At 2,048 rows that takes a GPU an eighth of the time of the
# chunk's three products (7.6 Tflop at a width of 4,096: 19 ms at 400 Tflop/s; 6 GB: 2.4 ms); three copies of such a
# chunk take 3.7 GB. On a CPU products are so slow that a quarter of it is enough.
ROWS_ON_A_GPU: Final = 2_048
LOGITS_ON_A_CPU: Final = 2**26  # 256 MB in float32
WORDS_OF_A_SPREAD: Final = 1_024  # a deviation estimated from so many is 2 % off, and they are under 1 % of V


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
) -> tuple[Tensor, Tensor, Tensor]:
    """(log-probs of the targets, entropies, logits_N2). The entropy has a gradient only with `train_entropy`, which
    costs another pass over the logits.

    `logits_N2`: the spread of a token's logits over the vocabulary, and the larger of its logit and log-sum-exp by
    size. Rounding errors are proportional to them (rounding.py)."""
    scores: tuple[Tensor, Tensor, Tensor] = _HeadScores.apply(  # type: ignore[no-untyped-call]
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
    ) -> tuple[Tensor, Tensor, Tensor]:
        hidden_ND, cast_VD = normed_ND.to(dtype), weight_VD.to(dtype)
        logprobs_N = torch.empty(len(hidden_ND), device=hidden_ND.device)
        entropy_N = torch.empty_like(logprobs_N)
        logits_N2 = logprobs_N.new_empty(len(hidden_ND), 2)
        all_CV = None
        for rows in _split_rows(len(hidden_ND), chunk):
            all_CV = None  # frees the last chunk's memory
            logits_CV = _compute_logits(hidden_ND[rows], cast_VD, temperature)
            own_C = logits_CV.gather(1, targets_N[rows].unsqueeze(1)).squeeze(1)
            all_CV = functional.log_softmax(logits_CV, dim=-1)
            del logits_CV
            logprobs_N[rows] = all_CV.gather(1, targets_N[rows].unsqueeze(1)).squeeze(1)
            bound_zeros(all_CV)
            logits_N2[rows] = _measure_logits(all_CV, own_C, logprobs_N[rows])
            entropy_N[rows] = -all_CV.exp().mul_(all_CV).sum(dim=-1)
        ctx.save_for_backward(normed_ND, weight_VD, targets_N, entropy_N, all_CV if len(hidden_ND) <= chunk else None)
        ctx.options = temperature, dtype, train_entropy, chunk
        ctx.mark_non_differentiable(logits_N2, *(() if train_entropy else (entropy_N,)))
        return logprobs_N, entropy_N, logits_N2

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_logprobs_N: Tensor, of_entropy_N: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        normed_ND, weight_VD, targets_N, entropy_N, kept_CV = ctx.saved_tensors
        temperature, dtype, train_entropy, chunk = ctx.options
        hidden_ND, cast_VD = normed_ND.to(dtype), weight_VD.to(dtype)
        of_normed_ND = torch.empty_like(normed_ND)
        of_weight_VD = torch.zeros_like(weight_VD, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        for rows in _split_rows(len(hidden_ND), chunk):
            all_CV = bound_zeros(_all_logprobs(hidden_ND[rows], cast_VD, temperature)) if kept_CV is None else kept_CV
            of_target_C1 = of_logprobs_N[rows].unsqueeze(1)
            # gradient of logit v: g·(δ - p) from the log-prob, and -h·p·(log p + H) from the entropy
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
    """Makes the logarithm of a zero probability finite, since 0·inf would be NaN."""
    return all_CV.clamp_(min=torch.finfo(torch.float32).min)


def _all_logprobs(hidden_CD: Tensor, cast_VD: Tensor, temperature: float) -> Tensor:
    return functional.log_softmax(_compute_logits(hidden_CD, cast_VD, temperature), dim=-1)


def _compute_logits(hidden_CD: Tensor, cast_VD: Tensor, temperature: float) -> Tensor:
    return functional.linear(hidden_CD, cast_VD).float() / temperature


def _measure_logits(all_CV: Tensor, own_C: Tensor, logprobs_C: Tensor) -> Tensor:
    """`logits_N2` of a chunk. A row's log-probs are its logits less a constant, so they have the same spread."""
    sample_CW = all_CV[:, :: max(all_CV.shape[1] // WORDS_OF_A_SPREAD, 1)]
    size_C = torch.maximum(own_C.abs(), (own_C - logprobs_C).abs())
    return torch.stack((sample_CW.std(dim=1, correction=0), size_C), dim=1)


def _split_rows(num_rows: int, chunk: int) -> list[slice]:
    return [slice(start, start + chunk) for start in range(0, num_rows, chunk)]
