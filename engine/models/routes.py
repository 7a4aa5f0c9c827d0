"""Routes: the experts of each token, as the rollout records them and the trainer replays them.

    token 0: k experts of mixture 0, k of mixture 1, …    token 1: …        a token begins with a new byte

    T tokens    W mixtures    X experts, k of them for a token    I = W·k    G groups of eight numbers    B bytes

A number takes as few bits as X experts need: 3 for 8, 7 for 128, 9 for 384. Deflating packed routes gains nothing
(engine/models/decisions.md has the measured sizes).

Invariants:
- routes cover a sequence's first tokens, prompt included; the routes of later tokens are unknown;
- as a tensor, a token whose route begins with the largest number is unknown; as bytes, one whose bits are all set. A
  router chooses no expert twice, so with two experts a token no route has such bits, and with one it has a number more;
- the router chooses freely for a token with an unknown route.
"""

from dataclasses import dataclass
from typing import Final, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from engine.models.mixture import Choose, MixtureShape, freely

_BYTE_BITS: Final = 8
_BYTE: Final = 0xFF
# While its bits are shifted a number takes 8 bytes: with 384 numbers a token, this many tokens take 13 MB.
TOKENS_AT_ONCE: Final = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteFormat:
    num_mixtures: int
    """0 for a dense model, whose routes have no bytes."""
    num_experts: int
    chosen: int
    """k"""
    dtype: torch.dtype
    """Of routes as a tensor."""

    @classmethod
    def of(cls, shape: MixtureShape | None) -> Self:
        if shape is None:
            return cls(num_mixtures=0, num_experts=0, chosen=0, dtype=torch.uint8)
        is_narrow = shape.num_experts <= torch.iinfo(torch.uint8).max
        return cls(
            num_mixtures=len(shape.layers),
            num_experts=shape.num_experts,
            chosen=shape.chosen,
            dtype=torch.uint8 if is_narrow else torch.int16,
        )

    @property
    def expert_bits(self) -> int:
        num_numbers = self.num_experts + (self.chosen == 1)
        return max(1, (num_numbers - 1).bit_length())

    @property
    def token_bytes(self) -> int:
        return _count_bytes(self.num_mixtures * self.chosen, self.expert_bits)

    @property
    def unknown(self) -> int:
        return torch.iinfo(self.dtype).max

    def packed(self, routes_TWk: Tensor) -> bytes:
        """Raises `ValueError` if an expert does not exist: its number might not fit its bits."""
        if not len(routes_TWk) or not self.token_bytes:
            return b""
        return b"".join(map(self._packed, torch.split(routes_TWk, TOKENS_AT_ONCE)))

    def _packed(self, routes_TWk: Tensor) -> bytes:
        routes_TWk = self.checked(routes_TWk.cpu().long())
        squeezed_TB = _squeeze(routes_TWk.flatten(1), self.expert_bits)
        squeezed_TB[routes_TWk[:, 0, 0] == self.unknown] = _BYTE
        return squeezed_TB.numpy().tobytes()

    def opened(self, data: bytes | bytearray | memoryview) -> Tensor:
        """Returns routes_TWk."""
        shape = (-1, self.num_mixtures, self.chosen)
        if not len(data):
            return torch.empty((0, *shape[1:]), dtype=self.dtype)
        packed_TB = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(-1, self.token_bytes)
        return torch.cat([self._opened(part_TB).view(shape) for part_TB in torch.split(packed_TB, TOKENS_AT_ONCE)])

    def _opened(self, packed_TB: Tensor) -> Tensor:
        numbers_TI = _spread(packed_TB, self.num_mixtures * self.chosen, self.expert_bits).to(self.dtype)
        numbers_TI[(packed_TB == _BYTE).all(dim=1)] = self.unknown
        return numbers_TI

    def checked(self, routes_TWk: Tensor) -> Tensor:
        """Raises `ValueError` if an expert does not exist."""
        named_TWk = routes_TWk[routes_TWk[:, 0, 0] != self.unknown]
        if named_TWk.numel() and not 0 <= int(named_TWk.min()) <= int(named_TWk.max()) < self.num_experts:
            raise ValueError(f"routes: experts must be from 0 to {self.num_experts - 1}, got {int(named_TWk.max())}")
        return routes_TWk


DENSE: Final = RouteFormat.of(None)


def _count_bytes(num_numbers: int, bits: int) -> int:
    return -(-num_numbers * bits // _BYTE_BITS)


def _squeeze(numbers_TI: Tensor, bits: int) -> Tensor:
    """squeezed_TB: the bits of a token's numbers, the lowest first; of wider numbers than a byte first the low bytes of
    all, then the bits above them."""
    if bits > _BYTE_BITS:
        rest_TB = _squeeze(numbers_TI >> _BYTE_BITS, bits - _BYTE_BITS)
        return torch.cat([_squeeze(numbers_TI & _BYTE, _BYTE_BITS), rest_TB], dim=1)
    num_numbers = numbers_TI.shape[1]
    groups_TG8 = pad(numbers_TI, (0, -num_numbers % 8)).view(len(numbers_TI), -1, 8)
    words_TG = (groups_TG8 << (bits * torch.arange(8))).sum(dim=2)
    bytes_TG8 = words_TG.view(torch.uint8).view(*words_TG.shape, 8)
    return bytes_TG8[:, :, :bits].flatten(1)[:, : _count_bytes(num_numbers, bits)].contiguous()


def _spread(squeezed_TB: Tensor, num_numbers: int, bits: int) -> Tensor:
    """The inverse of `_squeeze`."""
    if bits > _BYTE_BITS:
        low_TI = _spread(squeezed_TB[:, :num_numbers], num_numbers, _BYTE_BITS)
        rest_TI = _spread(squeezed_TB[:, num_numbers:], num_numbers, bits - _BYTE_BITS)
        return low_TI | rest_TI << _BYTE_BITS
    num_groups = -(-num_numbers // 8)
    whole_TGb = pad(squeezed_TB, (0, num_groups * bits - squeezed_TB.shape[1])).view(-1, num_groups, bits)
    words_TG = pad(whole_TGb, (0, 8 - bits)).view(torch.int64).squeeze(2)
    numbers_TG8 = (words_TG[:, :, None] >> (bits * torch.arange(8))) & ((1 << bits) - 1)
    return numbers_TG8.flatten(1)[:, :num_numbers]


def replayed(routes_TWk: Tensor | None) -> Choose:
    """Replays the recorded routes; chooses freely without any."""
    return freely if routes_TWk is None else Replayed(routes_TWk)


class Replayed:
    """Implements `Choose` by recorded routes."""

    def __init__(self, routes_TWk: Tensor) -> None:
        self._routes_TWk = routes_TWk
        self._unknown = torch.iinfo(routes_TWk.dtype).max

    def __call__(self, mixture: int, logits_TX: Tensor, k: int) -> Tensor:
        noted_Tk = self._routes_TWk[:, mixture].long()
        is_known_T1 = noted_Tk[:, :1] != self._unknown
        return torch.where(is_known_T1, noted_Tk, freely(mixture, logits_TX, k))
