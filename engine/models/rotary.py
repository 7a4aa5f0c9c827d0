"""Rotary position embeddings, and the ways in which configurations stretch them for contexts longer than those of the
first training.

    P positions    h pairs of a head's numbers    E width of a head

Invariant: the tables equal those of transformers, which trainers of other families use.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
from torch import Tensor

STRETCHES: Final = ("default", "llama3", "yarn")
_YARN_SETTINGS: Final = frozenset(
    (
        *("type", "rope_type", "rope_theta", "factor", "original_max_position_embeddings", "partial_rotary_factor"),
        *("attention_factor", "beta_fast", "beta_slow", "truncate"),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Stretch:
    """Divides low frequencies by `factor`, keeps high ones, and interpolates between them."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_positions: int

    @property
    def scale(self) -> float:
        return 1.0

    def slowed(self, turns_h: Tensor, theta: float) -> Tensor:
        turns_of_original_h = self.original_positions * turns_h / (2 * math.pi)
        share_h = (turns_of_original_h - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        share_h = share_h.clamp(0.0, 1.0)
        return (1 - share_h) * turns_h / self.factor + share_h * turns_h


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnStretch:
    """YaRN (arXiv 2309.00071): the same, interpolating linearly from the pair that turns `fast` times within the
    original positions to the pair that turns `slow` times; `scale` sharpens attention a little."""

    factor: float
    original_positions: int
    fast: float
    slow: float
    whole_pairs: bool
    """The interpolation begins and ends at a pair, not between two."""
    scale: float
    """Multiplies queries and keys."""

    def slowed(self, turns_h: Tensor, theta: float) -> Tensor:
        num_pairs = len(turns_h)
        begin, end = (self._find_pair(times, 2 * num_pairs, theta) for times in (self.fast, self.slow))
        if self.whole_pairs:
            begin, end = math.floor(begin), math.ceil(end)
        begin, end = max(begin, 0), min(end, 2 * num_pairs - 1)
        width = end - begin or 0.001  # as in transformers
        share_h = 1 - ((torch.arange(num_pairs, dtype=torch.float32) - begin) / width).clamp(0.0, 1.0)
        return (1 - share_h) * turns_h / self.factor + share_h * turns_h

    def _find_pair(self, times: float, width: int, theta: float) -> float:
        return width * math.log(self.original_positions / (times * 2 * math.pi)) / (2 * math.log(theta))


RopeStretch = Llama3Stretch | YarnStretch


class RotaryConfig(Protocol):
    """The settings that determine the tables."""

    @property
    def head_dim(self) -> int: ...

    @property
    def max_positions(self) -> int: ...

    @property
    def rope_theta(self) -> float: ...

    @property
    def rope_stretch(self) -> RopeStretch | None: ...


def rotary_tables(config: RotaryConfig) -> tuple[Tensor, Tensor]:
    """(cos_PE, sin_PE)"""
    half = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    turns_h, stretch = 1.0 / (config.rope_theta**half), config.rope_stretch
    if stretch is not None:
        turns_h = stretch.slowed(turns_h, config.rope_theta)
    scale = 1.0 if stretch is None else stretch.scale
    angles_Ph = torch.outer(torch.arange(config.max_positions).float(), turns_h)
    sin_Ph = angles_Ph.sin() * scale
    return torch.cat((angles_Ph, angles_Ph), dim=-1).cos() * scale, torch.cat((-sin_Ph, sin_Ph), dim=-1)


def rotate(x_THE: Tensor, cos_T1E: Tensor, sin_T1E: Tensor) -> Tensor:
    """`sin_T1E` carries the sign of each half, so that a rotation needs one roll instead of a negated copy."""
    return torch.addcmul(x_THE * cos_T1E, x_THE.roll(x_THE.shape[-1] // 2, -1), sin_T1E)


def read_stretch(rope: Mapping[str, Any]) -> RopeStretch | None:
    """Reads config.json's rotary settings, whose type must be one of STRETCHES. Raises `ValueError`."""
    match rope.get("rope_type") or rope.get("type"):
        case "llama3":
            return Llama3Stretch(
                factor=_read_number(rope, "factor"),
                low_freq_factor=_read_number(rope, "low_freq_factor"),
                high_freq_factor=_read_number(rope, "high_freq_factor"),
                original_positions=int(_read_number(rope, "original_max_position_embeddings")),
            )
        case "yarn":
            return _read_yarn(rope)
    return None


def _read_yarn(rope: Mapping[str, Any]) -> YarnStretch:
    if unknown := sorted(name for name in rope.keys() - _YARN_SETTINGS if rope[name]):
        raise ValueError(
            f"config.json: rope setting {unknown[0]} must be empty for this decoder, got {rope[unknown[0]]!r}"
        )
    factor = _read_number(rope, "factor")
    sharper = 1.0 if factor <= 1 else 0.1 * math.log(factor) + 1.0
    return YarnStretch(
        factor=factor,
        original_positions=int(_read_number(rope, "original_max_position_embeddings")),
        fast=float(rope.get("beta_fast") or 32),
        slow=float(rope.get("beta_slow") or 1),
        whole_pairs=bool(rope.get("truncate", True)),
        scale=sharper if rope.get("attention_factor") is None else float(rope["attention_factor"]),
    )


def _read_number(rope: Mapping[str, Any], name: str) -> float:
    value = rope.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise ValueError(f"config.json: rope setting {name} must be a number above 0 for this decoder, got {value!r}")
    return float(value)
