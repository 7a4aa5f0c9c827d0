"""The gap between rollouts and trainer: the difference of a token's log-probs by the rollout that wrote it and by the
policy that the step begins with.

    N written tokens of a micro-batch    M written tokens of the step    B bins    L lags    Q quarters of a response

At lag 0 both have the same weights, and the gap is arithmetic: two programs that round differently. From lag 1 on it
also contains the training since.

Percentiles are read from a histogram with fixed bin edges, eight to an octave. Counts add up exactly over micro-batches
and ranks, without sending tokens; a figure is the upper edge of its bin, so it exceeds the true one by at most 8.3 % of
itself. Below 2⁻²⁴ and above 32 nats there is one bin each.

For the tokens of lag 0, the same bins also count the deviations that rounding explains. `train/logprob_gap_bound` is
the 90th percentile of |gap| that follows from these deviations.

Invariants:
- a token is counted if its log-prob at the step's beginning is known, and at most once in a pass;
- every rank computes the same numbers.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.algorithms.corrections import bounded
from engine.training.step.micro_batch import MicroBatch
from engine.training.step.ranks import Ranks
from engine.training.step.rounding import ONE_IN_TEN, Rounding, share_beyond

BINS_AN_OCTAVE: Final = 8
SMALLEST_LOG2: Final = -24
LARGEST_LOG2: Final = 5
NUM_BINS: Final = (LARGEST_LOG2 - SMALLEST_LOG2) * BINS_AN_OCTAVE + 1
NUM_LAGS: Final = 4
"""0, 1, 2, and 3 or more."""
QUARTERS: Final = 4
# The columns after the bins, for each lag and quarter: the sums for the means.
_SUMS: Final = ("gap", "k1", "k3")
# The row of deviations, after the rows of gaps.
_EXPLAINED: Final = NUM_LAGS * QUARTERS
UNKNOWN: Final = -math.inf


class GapTally:
    def __init__(self, lengths: Sequence[int], *, device: str | torch.device, rounding: Rounding) -> None:
        """`lengths`: the written tokens of each trajectory of the step."""
        self._rounding = rounding
        self._quarters_M = _find_quarters(lengths).to(device)
        self._counted = torch.zeros(_EXPLAINED + 1, NUM_BINS + len(_SUMS), dtype=torch.float64, device=device)
        self._largest = torch.zeros((), device=device)
        self._lengths = lengths
        self._begun_M = torch.full((sum(lengths),), UNKNOWN, device=device)

    @torch.no_grad()
    def count(self, batch: MicroBatch, begun_N: Tensor, logits_N2: Tensor) -> None:
        """`begun_N`: log-probs by the weights that the step begins with. `logits_N2`: see `Rounding`."""
        if batch.idle:
            return
        self._begun_M[batch.slots_N] = begun_N.detach().float()
        apart_N = begun_N.detach() - batch.behaviour_logprobs_N
        gap_N = apart_N.abs().nan_to_num(nan=math.inf)
        log_ratio_N = bounded(apart_N.nan_to_num()).double()
        lag_N = batch.staleness_N.clamp(0, NUM_LAGS - 1)
        row_N = lag_N * QUARTERS + self._quarters_M[batch.slots_N]
        flat = self._counted.view(-1)
        flat.index_add_(0, row_N * self._counted.shape[1] + _find_bins(gap_N), torch.ones_like(log_ratio_N))
        bin_N = _find_bins(self._rounding.deviations(begun_N.detach(), logits_N2))
        self._counted[_EXPLAINED].index_add_(0, bin_N, (batch.staleness_N == 0).double())
        sums_N3 = torch.stack((log_ratio_N.abs(), -log_ratio_N, log_ratio_N.exp() - 1.0 - log_ratio_N), dim=1)
        self._counted[:, NUM_BINS:].index_add_(0, row_N, sums_N3)
        fresh_N = torch.where(batch.staleness_N == 0, gap_N, 0.0)
        self._largest = torch.cat((fresh_N, self._largest.unsqueeze(0))).max()

    def begun(self, ranks: Ranks, *, most: int) -> list[NDArray[np.float32]]:
        """Log-probs of each trajectory's first tokens by the step's first weights; empty for a trajectory whose tokens
        were not counted. Collective."""
        begun_M = ranks.max(self._begun_M).cpu().numpy()
        of_each = np.split(begun_M, np.cumsum(self._lengths)[:-1])
        first = [each[:most] for each in of_each]
        return [each if (each != UNKNOWN).all() else each[:0] for each in first]

    def metrics(self, ranks: Ranks) -> dict[str, float]:
        """The metrics, without lags and quarters that have no tokens. Collective."""
        summed = ranks.sum(self._counted).cpu()
        counted = summed[:_EXPLAINED].view(NUM_LAGS, QUARTERS, -1)
        largest = ranks.max(self._largest).item()
        fresh, *older = counted.sum(dim=1)
        metrics: dict[str, float] = {}
        if _count_tokens(fresh):
            metrics |= {
                "train/logprob_gap_bound": _find_bound(summed[_EXPLAINED]),
                "train/logprob_gap": _mean(fresh, "gap"),
                "train/logprob_gap_max": largest,
                **{f"train/logprob_gap_p{percent}": percentile(fresh, percent) for percent in (50, 90, 99)},
                **{f"train/logprob_gap_{kind}": _mean(fresh, kind) for kind in ("k1", "k3")},
            }
        for quarter, counts in enumerate(counted[0], start=1):
            if _count_tokens(counts):
                metrics[f"train/logprob_gap_p99_quarter_{quarter}"] = percentile(counts, 99)
        for lag, counts in enumerate(older, start=1):
            if _count_tokens(counts):
                metrics[f"train/logprob_gap_p99_lag_{lag}"] = percentile(counts, 99)
                metrics[f"train/logprob_gap_k3_lag_{lag}"] = _mean(counts, "k3")
        return metrics


def percentile(counts: Tensor, percent: int) -> float:
    """The upper edge of the percentile's bin."""
    bins_B = counts[:NUM_BINS]
    rank = math.ceil(percent / 100 * float(bins_B.sum()))
    place = int(torch.searchsorted(bins_B.cumsum(0), torch.tensor(float(rank), dtype=bins_B.dtype)))
    return float(_make_edges()[place])


def _find_bound(counts: Tensor) -> float:
    """The upper edge of the bin of the smallest gap that rounding exceeds in at most one token in ten."""
    edges_B, counts_B = _make_edges(), counts[:NUM_BINS]
    beyond_B = share_beyond(edges_B, edges_B, counts_B)
    return float(edges_B[int((beyond_B > ONE_IN_TEN).sum().clamp(max=NUM_BINS - 1))])


def _find_bins(values_N: Tensor) -> Tensor:
    places_N = (BINS_AN_OCTAVE * (values_N.double().log2() - SMALLEST_LOG2)).ceil()
    return places_N.clamp(0, NUM_BINS - 1).long()


def _make_edges() -> Tensor:
    return 2.0 ** (SMALLEST_LOG2 + torch.arange(NUM_BINS, dtype=torch.float64) / BINS_AN_OCTAVE)


def _find_quarters(lengths: Sequence[int]) -> Tensor:
    of_each = [torch.arange(length).mul_(QUARTERS).div_(length, rounding_mode="floor") for length in lengths if length]
    return torch.cat(of_each) if of_each else torch.zeros(0, dtype=torch.int64)


def _count_tokens(counts: Tensor) -> float:
    return float(counts[:NUM_BINS].sum())


def _mean(counts: Tensor, what: str) -> float:
    return float(counts[NUM_BINS + _SUMS.index(what)]) / _count_tokens(counts)
