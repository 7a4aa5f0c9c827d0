"""Series of a step's losses, from sums over micro-batches, ranks and updates.

    M written tokens of the step

With several updates, a mean over tokens covers the tokens of all updates, each as often as it was trained on;
`train/loss`, `train/value_loss` and gradient norms are means over the updates. A skipped update is counted in
`train/skipped` and left out of the other metrics, unless all were skipped.

Invariant: every rank computes the same numbers.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.algorithms.advantages import Advantages
from engine.training.step.gap import GapTally
from engine.training.step.micro_batch import BatchedStep
from engine.training.step.ranks import Ranks
from engine.training.step.witness import update_witnessed

# A variance below this part of the mean square is float32 rounding of equal returns: 2⁻²⁰ of their size.
_SAME_RETURNS: Final = 2.0**-40


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateOutcome:
    """The outcome of one update."""

    updated: bool
    grad_norms: Mapping[str, float]
    """By prefix of each trained part, before clipping."""
    learning_rate: float
    """The policy's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counted:
    """The counts of one update, over all ranks."""

    sums: Mapping[str, float]
    peaks: Mapping[str, float]


class Tally:
    def __init__(
        self,
        *,
        penalties: Sequence[float],
        batched: BatchedStep,
        advantages: Advantages,
        gap: GapTally,
        ranks: Ranks,
    ) -> None:
        self.penalties = penalties
        self.batched = batched
        self.advantages = advantages
        self.gap = gap
        self.ranks = ranks
        self._sums: dict[str, Tensor] = {}
        self._peaks: dict[str, Tensor] = {}
        self._counted = _Counted(sums={}, peaks={})
        self.updates: list[tuple[_Counted, UpdateOutcome]] = []

    @property
    def trajectory_advantages(self) -> tuple[float, ...]:
        return tuple(self.advantages.means_N(self.lengths).tolist())

    def begun_logprobs(self, *, most: int) -> list[NDArray[np.float32]]:
        return self.gap.begun(self.ranks, most=most)

    @property
    def lengths(self) -> list[int]:
        """The number of written tokens of each trajectory."""
        lengths: list[int] = self.batched.batch.num_written_N.tolist()
        return lengths

    def count(self, sums: Mapping[str, Tensor], peaks: Mapping[str, Tensor], *, idle: bool) -> None:
        """Adds a micro-batch. An idle one adds zeros under its names, so that ranks agree on the names."""
        for name, value in sums.items():
            added = torch.zeros_like(value, dtype=torch.float64) if idle else value.double()
            self._sums[name] = self._sums[name] + added if name in self._sums else added
        for name, value in peaks.items():
            reached = torch.zeros_like(value) if idle else value
            self._peaks[name] = torch.maximum(self._peaks[name], reached) if name in self._peaks else reached

    def has_finite_losses(self) -> bool:
        """Whether the losses of the update just counted are finite on all ranks; trainers check the gradients."""
        sums, peaks = torch.stack(list(self._sums.values())), torch.stack(list(self._peaks.values()))
        self._counted = _Counted(
            sums=dict(zip(self._sums, self.ranks.sum(sums).tolist(), strict=True)),
            peaks=dict(zip(self._peaks, self.ranks.max(peaks).tolist(), strict=True)),
        )
        self._sums, self._peaks = {}, {}
        return all(math.isfinite(self._counted.sums.get(name, 0.0)) for name in ("loss", "value_loss"))

    def close(self, outcome: UpdateOutcome) -> None:
        """Ends the update that `has_finite_losses` has summed."""
        self.updates.append((self._counted, outcome))
        update_witnessed(gradient_norms=torch.tensor(list(outcome.grad_norms.values()), dtype=torch.float64))


def loss_series(tally: Tally) -> dict[str, float]:
    """Drops non-finite values, which can be neither plotted nor stored; `train/skipped` counts their updates."""
    metrics = _measure_tokens(tally) | _measure_updates(tally) | tally.gap.metrics(tally.ranks)
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def _select_updates(tally: Tally) -> list[tuple[_Counted, UpdateOutcome]]:
    """The applied updates; all if none was applied."""
    return [each for each in tally.updates if each[1].updated] or tally.updates


def _measure_updates(tally: Tally) -> dict[str, float]:
    outcomes = [outcome for _, outcome in _select_updates(tally)]
    num_updates = sum(outcome.updated for _, outcome in tally.updates)
    return {
        **{
            f"train/{prefix}grad_norm": sum(outcome.grad_norms[prefix] for outcome in outcomes) / len(outcomes)
            for prefix in outcomes[0].grad_norms
        },
        "train/learning_rate": tally.updates[-1][1].learning_rate,
        "train/updates": float(num_updates),
        "train/skipped": float(len(tally.updates) - num_updates),
    }


def _measure_tokens(tally: Tally) -> dict[str, float]:
    counted = [each for each, _ in _select_updates(tally)]
    sums = {name: sum(each.sums[name] for each in counted) for name in counted[0].sums}
    peaks = {name: max(each.peaks[name] for each in counted) for name in counted[0].peaks}
    num, batch = sums["tokens"], tally.batched.batch
    advantage, deviation = tally.advantages.over_tokens(tally.lengths)
    metrics = {
        "train/loss": sums["loss"] / len(counted),
        "train/entropy": sums["entropy"] / num,
        "train/clip_fraction": (sums["clip_low"] + sums["clip_high"]) / num,
        "train/clip_fraction_low": sums["clip_low"] / num,
        "train/clip_fraction_high": sums["clip_high"] / num,
        "train/ratio_mean": sums["ratio"] / num,
        "train/ratio_max": peaks["ratio_max"],
        "train/behaviour_kl": sums["behaviour_kl"] / num,
        # The share of tokens that would carry as much information at equal weights: (Σr)² / n·Σr².
        "train/effective_sample_fraction": sums["ratio"] ** 2 / (num * sums["ratio_squared"]),
        "train/correction_weight": sums["correction_weight"] / num,
        "train/corrected_away": sums["corrected_away"] / num,
        "train/advantage_mean": advantage,
        "train/advantage_std": deviation,
        "train/padding_fraction": tally.batched.padding_fraction,
        "train/shared_fraction": tally.batched.shared_fraction,
        "train/tokens": float(batch.num_tokens),
        "train/trained_tokens": float(tally.batched.num_tokens),
    }
    if "routable" in sums:
        metrics["train/unrouted_fraction"] = sums["unrouted"] / sums["routable"]
    if "kl" in sums:
        metrics["train/kl"] = sums["kl"] / num
    if "teacher_kl" in sums:
        metrics["train/teacher_kl"] = sums["teacher_kl"] / num
    if any(tally.penalties):
        metrics["train/overlong_penalty"] = sum(tally.penalties) / len(tally.penalties)
    if "value_loss" in sums:
        metrics["train/value_loss"] = sums["value_loss"] / len(counted)
        metrics["train/value_mean"] = sums["value"] / num
        metrics["train/explained_variance"] = _explain_variance(sums, num)
    return metrics


def _explain_variance(sums: Mapping[str, float], num: float) -> float:
    """1: the critic predicts every return; 0: no better than a constant, or all returns are equal."""
    mean_square = sums["return_squared"] / num
    of_returns = mean_square - (sums["return"] / num) ** 2
    of_errors = sums["error_squared"] / num - (sums["error"] / num) ** 2
    return 1.0 - of_errors / of_returns if of_returns > _SAME_RETURNS * mean_square else 0.0
