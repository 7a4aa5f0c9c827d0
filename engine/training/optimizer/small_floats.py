"""Moments in 8 bits: floats with three bits after the point, whose exponents count down from their block's largest.

    float32   s eeeeeeee mmmmmmmmmmmmmmmmmmmmmmm
    rounded   s eeeeeeee mmm                        stochastically, as in stochastic_rounding.py
    kept      s      eee e mmm                      signed: 15 powers of two below the block's largest
                   eeeee mmm                        never negative: 31 of them
    a block   eeeeeeee                              its largest exponent, one byte for 256 numbers

Rounding does not depend on the block, except for numbers so small that their exponent does not fit. Such a first moment
becomes 0 or the smallest float at random, right on average. Such a second moment becomes the smallest float: it is a
divisor, so the update is too short; a 0 would make it unbounded.

    R rows    C columns    B blocks of a row    K numbers of a block

Invariants:
- a block lies within a row, so sharding by rows and splitting a fused matrix by rows split no block;
- every stored number is exactly a bfloat16, and rounding it again does not change it: a checkpoint holds bfloat16, and
  a resume on any number of ranks has the same blocks of the same numbers. There is one zero.
"""

from dataclasses import dataclass
from typing import Final, Self

import torch
from torch import Tensor
from torch.nn import functional

BLOCK: Final = 256
KEPT_BITS: Final = 3
CUT_BITS: Final = 23 - KEPT_BITS
NUM_NOISES: Final = 1 << CUT_BITS
_NEGATIVE: Final = 0x80


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallFloats:
    codes_RC: Tensor
    tops_RB: Tensor
    signed: bool

    @classmethod
    def zeros(cls, shape: torch.Size, *, signed: bool, device: torch.device, pinned: bool) -> Self:
        num_rows, num_columns = shape
        return cls(
            codes_RC=torch.zeros(num_rows, num_columns, dtype=torch.uint8, device=device, pin_memory=pinned),
            tops_RB=torch.zeros(
                num_rows, -(-num_columns // BLOCK), dtype=torch.uint8, device=device, pin_memory=pinned
            ),
            signed=signed,
        )

    def read(self, rows: slice, device: torch.device) -> Tensor:
        """Returns the rows as float32."""
        return decoded(self.codes_RC[rows].to(device), self.tops_RB[rows].to(device), signed=self.signed)

    def write(self, rows: slice, values_RC: Tensor, chance: torch.Generator) -> None:
        """`values_RC`: float32 and finite, on the generator's device."""
        noise_RC = torch.randint(
            NUM_NOISES, values_RC.shape, generator=chance, dtype=torch.int32, device=values_RC.device
        )
        codes_RC, tops_RB = encoded(values_RC, noise_RC, signed=self.signed)
        self.codes_RC[rows].copy_(codes_RC)
        self.tops_RB[rows].copy_(tops_RB)


def encoded(values_RC: Tensor, noise_RC: Tensor, *, signed: bool) -> tuple[Tensor, Tensor]:
    """Returns codes and the blocks' exponents. `noise_RC`: from 0 to `NUM_NOISES` - 1."""
    values_RBK, noise_RBK = _split_blocks(values_RC), _split_blocks(noise_RC)
    sizes_RBK = values_RBK.abs()
    rounded_RBK = (sizes_RBK.view(torch.int32) + noise_RBK).bitwise_right_shift_(CUT_BITS)
    tops_RB = rounded_RBK.amax(-1) >> KEPT_BITS
    below_RB1 = _find_base(tops_RB, signed=signed)
    is_any_RBK = rounded_RBK > 0
    codes_RBK = rounded_RBK.sub_(below_RB1)
    if signed:
        smallest_RB1 = ((below_RB1 + 1) << CUT_BITS).view(torch.float32)
        is_up_RBK = sizes_RBK.mul_(NUM_NOISES) > smallest_RB1 * noise_RBK
        codes_RBK.clamp_(min=0).bitwise_or_((codes_RBK == 0) & is_up_RBK).mul_(is_any_RBK)
        negative_RBK = values_RBK.view(torch.int32).bitwise_right_shift(24).bitwise_and_(_NEGATIVE)
        codes_RBK.bitwise_or_(negative_RBK.mul_(codes_RBK > 0))
    else:
        codes_RBK.clamp_(min=1).mul_(is_any_RBK)
    codes_RC = codes_RBK.to(torch.uint8).flatten(1)[:, : values_RC.shape[1]]
    return codes_RC, tops_RB.to(torch.uint8)


def decoded(codes_RC: Tensor, tops_RB: Tensor, *, signed: bool) -> Tensor:
    codes_RBK = _split_blocks(codes_RC).to(torch.int32)
    own_RBK = codes_RBK & ~_NEGATIVE if signed else codes_RBK
    bits_RBK = (own_RBK + _find_base(tops_RB.to(torch.int32), signed=signed)).mul_(own_RBK > 0)
    bits_RBK.bitwise_left_shift_(CUT_BITS)
    if signed:
        bits_RBK.bitwise_or_((codes_RBK & _NEGATIVE).bitwise_left_shift_(24))
    return bits_RBK.view(torch.float32).flatten(1)[:, : codes_RC.shape[1]]


def _find_base(tops_RB: Tensor, *, signed: bool) -> Tensor:
    """The value that each block's codes count from, which is the code of zero."""
    return ((tops_RB - (15 if signed else 31)) << KEPT_BITS).unsqueeze(-1)


def _split_blocks(x_RC: Tensor) -> Tensor:
    """Splits rows into blocks; pads the last block of a row with zeros."""
    num_rows, num_columns = x_RC.shape
    missing = -num_columns % BLOCK
    padded = functional.pad(x_RC, (0, missing)) if missing else x_RC
    return padded.reshape(num_rows, (num_columns + missing) // BLOCK, BLOCK)
