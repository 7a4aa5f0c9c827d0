"""Draw one token a row. The draw depends on the request's seed and the token's position, on nothing else.

    B rows    V vocabulary

Chance is a hash of (seed, position) instead of a generator's state, so a sequence says the same whatever runs beside
it, in whatever row, and after it was moved to another engine in the middle.

Invariants:
- at temperature 0 the likeliest token is taken;
- a log-prob is the one of the distribution that was drawn from (at temperature 0, where that is certainty: the
  model's own, as at temperature 1);
- a token of probability zero is never drawn.
"""

import torch
from torch import Tensor

_UNIFORM_BITS = 40  # enough for any vocabulary, and the largest uniform times a sum still rounds below the sum


def sample_tokens(logits_BV: Tensor, temperatures_B: Tensor, uniforms_B: Tensor) -> tuple[Tensor, Tensor]:
    """(tokens_B, logprobs_B), by inverting the cumulative distribution."""
    greedy_B = temperatures_B == 0.0
    scaled_BV = logits_BV.float() / torch.where(greedy_B, 1.0, temperatures_B).unsqueeze(1)
    logprobs_BV = torch.log_softmax(scaled_BV, dim=-1)
    mass_BV = logprobs_BV.exp().cumsum(dim=-1, dtype=torch.float64)
    target_B1 = mass_BV[:, -1:] * uniforms_B.unsqueeze(1)
    drawn_B = torch.searchsorted(mass_BV, target_B1, right=True).squeeze(1)
    tokens_B = torch.where(greedy_B, logits_BV.argmax(dim=-1), drawn_B)
    return tokens_B, logprobs_BV.gather(1, tokens_B.unsqueeze(1)).squeeze(1)


def uniforms(seeds_B: Tensor, positions_B: Tensor) -> Tensor:
    """In [0, 1), from SplitMix64's finalizer over int64, which wraps around as the hash wants it."""
    hashed_B = _mix(_mix(seeds_B) + positions_B * signed_64(0x9E3779B97F4A7C15))
    return _shift_right(hashed_B, 64 - _UNIFORM_BITS).double() * 2.0**-_UNIFORM_BITS


def _mix(x_B: Tensor) -> Tensor:
    x_B = (x_B ^ _shift_right(x_B, 30)) * signed_64(0xBF58476D1CE4E5B9)
    x_B = (x_B ^ _shift_right(x_B, 27)) * signed_64(0x94D049BB133111EB)
    return x_B ^ _shift_right(x_B, 31)


def _shift_right(x_B: Tensor, bits: int) -> Tensor:
    """Zeros come in from the left; torch's own shift repeats the sign."""
    return (x_B >> bits) & ((1 << (64 - bits)) - 1)


def signed_64(word: int) -> int:
    """The int64 with the low 64 bits of `word`."""
    word &= (1 << 64) - 1
    return word - (1 << 64) if word >> 63 else word
