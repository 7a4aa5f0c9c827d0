"""Routes: the experts of each token, as the rollout records them and the trainer replays them.

    token 0: k experts of mixture 0, k of mixture 1, …    token 1: …        8 bits each; 16 from 256 experts on

    T tokens    W mixtures    X experts, k of them for a token

Invariants:
- routes cover a sequence's first tokens, prompt included; the routes of later tokens are unknown;
- the largest number means no expert: a token whose route begins with it is unknown too;
- the router chooses freely for a token with an unknown route.
"""

import warnings
from dataclasses import dataclass
from typing import Final, Self

import torch
from torch import Tensor

from engine.models.mixture import Choose, MixtureShape, freely


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteFormat:
    num_mixtures: int
    """0 for a dense model, whose routes have no bytes."""
    num_experts: int
    chosen: int
    """k"""
    dtype: torch.dtype

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
    def token_bytes(self) -> int:
        return self.num_mixtures * self.chosen * self.dtype.itemsize

    @property
    def unknown(self) -> int:
        return torch.iinfo(self.dtype).max

    def packed(self, routes_TWk: Tensor) -> bytes:
        flat = routes_TWk.to("cpu", self.dtype).contiguous().view(torch.uint8).flatten()
        return flat.numpy().tobytes()

    def opened(self, data: bytes | bytearray | memoryview) -> Tensor:
        """Returns routes_TWk, which share the memory of `data`."""
        shape = (-1, self.num_mixtures, self.chosen)
        if not len(data):
            return torch.empty((0, *shape[1:]), dtype=self.dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch warns that it has no read-only tensors
            return torch.frombuffer(data, dtype=self.dtype).view(shape)

    def checked(self, data: bytes) -> bytes:
        """Raises `ValueError` if an expert does not exist."""
        routes_TWk = self.opened(data)
        named_TWk = routes_TWk[routes_TWk[:, 0, 0] != self.unknown] if len(data) else routes_TWk
        if named_TWk.numel() and not 0 <= int(named_TWk.min()) <= int(named_TWk.max()) < self.num_experts:
            raise ValueError(f"routes: experts must be from 0 to {self.num_experts - 1}, got {int(named_TWk.max())}")
        return data


DENSE: Final = RouteFormat.of(None)


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
