"""The draw of one token a row, from the request's seed and the token's position alone.

    B rows    V vocabulary = S stretches of W tokens    J positions

The random number is a hash of (seed, position) and not a generator's state, so a sequence draws the same tokens in any
batch, in any row, and after a move to another engine.

Invariants:
- at temperature 0 the likeliest token is taken;
- a log-prob is over the whole vocabulary at the row's temperature (at temperature 0: at 1), whatever is cut off, so a
  trainer can recompute it;
- a token that is cut off, or of probability zero, is never drawn; the likeliest is never cut off;
- a row without cuts draws the same in a batch with rows that have cuts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional

from engine.inference.port import SamplingParams
from engine.inference.requests import DrawKind

_STRETCH = 128  # divides the vocabularies of most models, and is close to their square root
_UNIFORM_BITS = 40  # enough for any vocabulary; few enough that the largest uniform times a sum rounds below the sum


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuts:
    top_k_B1: Tensor
    top_p_B1: Tensor
    min_p_B1: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSampling:
    """The sampling parameters of a batch's rows, on the device; None: no row uses them. B is 1 if all are equal."""

    temperatures_B1: Tensor | None
    is_greedy_B: Tensor | None
    """None: all rows are greedy, or none is."""
    cuts: Cuts | None

    @classmethod
    def of(cls, rows: Sequence[SamplingParams], device: str) -> Self:
        return cls.of_kinds([DrawKind.of(each) for each in rows], device)

    @classmethod
    def of_kinds(cls, rows: Sequence[DrawKind], device: str) -> Self:
        return cls._make(tuple(rows[:1] if len(set(rows)) == 1 else rows), device)

    @classmethod
    @lru_cache(maxsize=64)  # nearly always all rows are of one kind, but they change at every step
    def _make(cls, rows: tuple[DrawKind, ...], device: str) -> Self:
        def column(values: Sequence[float]) -> Tensor:
            return torch.tensor(values, device=device).unsqueeze(1)

        greedy = [each.temperature == 0.0 for each in rows]
        if all(greedy):
            return cls(temperatures_B1=None, is_greedy_B=None, cuts=None)
        cuts = None
        if any(each.top_k or each.top_p < 1.0 or each.min_p for each in rows):
            cuts = Cuts(
                top_k_B1=column([each.top_k for each in rows]),
                top_p_B1=column([each.top_p for each in rows]),
                min_p_B1=column([each.min_p for each in rows]),
            )
        return cls(
            temperatures_B1=column([each.temperature or 1.0 for each in rows]),
            is_greedy_B=torch.tensor(greedy, device=device) if any(greedy) else None,
            cuts=cuts,
        )


def sample_tokens(
    logits_BV: Tensor, sampling: RowSampling, uniforms_B: Tensor | None, *, by_stretches: bool = False
) -> tuple[Tensor, Tensor]:
    """(tokens_B, logprobs_B). `by_stretches`: faster on a GPU, with half of the float64 memory."""
    logits_BV = logits_BV.float()
    if sampling.temperatures_B1 is None or uniforms_B is None:
        logprobs_B, tokens_B = torch.log_softmax(logits_BV, dim=-1).max(dim=-1)
        return tokens_B, logprobs_B
    logprobs_BV = torch.log_softmax(logits_BV / sampling.temperatures_B1, dim=-1)
    mass_BV = logprobs_BV.exp()
    if sampling.cuts is not None:
        mass_BV = mass_BV * _kept(mass_BV, sampling.cuts)
    tokens_B = (_draw_by_stretches if by_stretches else _draw)(mass_BV, uniforms_B)
    if sampling.is_greedy_B is not None:
        tokens_B = torch.where(sampling.is_greedy_B, logits_BV.argmax(dim=-1), tokens_B)
    return tokens_B, logprobs_BV.gather(1, tokens_B.unsqueeze(1)).squeeze(1)


def _draw(mass_BV: Tensor, uniforms_B: Tensor) -> Tensor:
    """Inverts the cumulative distribution, in the vocabulary's order with and without cuts."""
    reached_BV = mass_BV.cumsum(dim=-1, dtype=torch.float64)
    target_B1 = reached_BV[:, -1:] * uniforms_B.unsqueeze(1)
    return torch.searchsorted(reached_BV, target_B1, right=True).squeeze(1)


def _draw_by_stretches(mass_BV: Tensor, uniforms_B: Tensor) -> Tensor:
    """The same draw: first a stretch of the vocabulary, then a token in it. The float64 sums have another order."""
    missing = -mass_BV.shape[1] % _STRETCH
    mass_BSW = (functional.pad(mass_BV, (0, missing)) if missing else mass_BV).view(len(mass_BV), -1, _STRETCH)
    reached_BS = mass_BSW.sum(dim=-1, dtype=torch.float64).cumsum(dim=-1)
    target_B1 = reached_BS[:, -1:] * uniforms_B.unsqueeze(1)
    stretch_B1 = torch.searchsorted(reached_BS, target_B1, right=True)
    before_B1 = functional.pad(reached_BS, (1, 0)).gather(1, stretch_B1)
    mass_BW = mass_BSW.gather(1, stretch_B1.unsqueeze(-1).expand(-1, 1, _STRETCH)).squeeze(1)
    reached_BW = mass_BW.cumsum(dim=-1, dtype=torch.float64)
    # Keeps the target below the stretch's own sum, which rounding may make smaller: the token then has probability > 0.
    below_B1 = torch.nextafter(reached_BW[:, -1:], torch.zeros_like(before_B1))
    place_B1 = torch.searchsorted(reached_BW, torch.minimum(target_B1 - before_B1, below_B1), right=True)
    return (stretch_B1 * _STRETCH + place_B1).squeeze(1)


def _kept(mass_BV: Tensor, cuts: Cuts) -> Tensor:
    """The likeliest k; of these, the fewest that add up to p; of these, all with at least min_p of the likeliest's."""
    sorted_BV, order_BV = mass_BV.sort(dim=-1, descending=True, stable=True)
    ranks_V = torch.arange(mass_BV.shape[1], device=mass_BV.device)
    is_kept_BV = (ranks_V < cuts.top_k_B1) | (cuts.top_k_B1 == 0)
    among_BV = sorted_BV.double() * is_kept_BV
    reached_BV = among_BV.cumsum(dim=-1)
    is_kept_BV = is_kept_BV & ((reached_BV - among_BV < cuts.top_p_B1 * reached_BV[:, -1:]) | (cuts.top_p_B1 >= 1.0))
    is_kept_BV = is_kept_BV & (sorted_BV >= cuts.min_p_B1 * sorted_BV[:, :1])
    return torch.zeros_like(is_kept_BV).scatter_(1, order_BV, is_kept_BV)


def uniforms(seeds: Tensor, positions: Tensor) -> Tensor:
    """In [0, 1), from SplitMix64's finalizer over int64, whose overflow wraps around as the hash requires."""
    return uniforms_of(mixed(seeds), positions)


def mixed(seeds: Tensor) -> Tensor:
    """The part of the hash that all positions of a seed share."""
    return _mix(seeds)


def uniforms_of(mixed_seeds: Tensor, positions: Tensor) -> Tensor:
    hashed = _mix(mixed_seeds + positions * signed_64(0x9E3779B97F4A7C15))
    return _shift_right(hashed, 64 - _UNIFORM_BITS).double() * 2.0**-_UNIFORM_BITS


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift_right(x, 30)) * signed_64(0xBF58476D1CE4E5B9)
    x = (x ^ _shift_right(x, 27)) * signed_64(0x94D049BB133111EB)
    return x ^ _shift_right(x, 31)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Zeros come in from the left; torch's own shift repeats the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def signed_64(word: int) -> int:
    """The int64 with the low 64 bits of `word`."""
    word &= (1 << 64) - 1
    return word - (1 << 64) if word >> 63 else word
