"""The gap between rollouts and trainer: its metrics equal those of the exact gaps, on one rank or several."""

import math
import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from engine.training.step.gap import BINS_AN_OCTAVE, GapTally
from engine.training.step.micro_batch import MicroBatch, batch_step
from engine.training.step.ranks import Alone
from engine.training.step.rounding import Rounding
from tests.engine.training.trainer_conformance import trajectories_of

RESOLUTION = 2.0 ** (1 / BINS_AN_OCTAVE)


class Halves:
    """Ranks of two tallies of one step, whose counts add up."""

    index, count = 0, 2

    def __init__(self, others: list[Tensor]) -> None:
        self._others = others

    def sum(self, tensor: Tensor) -> Tensor:
        return tensor + self._others[0]

    def max(self, tensor: Tensor) -> Tensor:
        return torch.maximum(tensor, self._others[1])


def micro_batches(seed: int, lags: list[int]) -> tuple[list[int], list[MicroBatch], dict[tuple[int, int], list[float]]]:
    """Lengths of responses, micro-batches, and the signed gaps of all tokens by lag and quarter."""
    rng = random.Random(seed)
    trajectories, gaps = [], dict[tuple[int, int], list[float]]()
    for each, lag in zip(trajectories_of(seed, num=len(lags)), lags, strict=True):
        length = len(each.response_ids)
        own = [rng.choice((-1, 1)) * 2.0 ** rng.uniform(-22, 4) for _ in range(length)]
        trajectories.append(replace(each, behaviour_logprobs=tuple(own), staleness=(lag,) * length))
        for place, gap in enumerate(own):
            gaps.setdefault((lag, 4 * place // length), []).append(torch.tensor(gap).item())
    batches = batch_step(trajectories, max_tokens=60, device="cpu").micro_batches
    return [len(each.response_ids) for each in trajectories], list(batches), gaps


def nearest_rank(gaps: list[float], percent: int) -> float:
    return sorted(map(abs, gaps))[math.ceil(percent / 100 * len(gaps)) - 1]


def counted(lengths: list[int], batches: list[MicroBatch]) -> GapTally:
    tally = GapTally(lengths, device="cpu", rounding=Rounding(of_terms=1e-2, of_logits=0.0, vocab_size=40))
    for batch in batches:
        begun_N = torch.zeros_like(batch.behaviour_logprobs_N)
        tally.count(batch, begun_N, torch.ones(len(begun_N), 2))
    return tally


def test_percentile_is_at_most_one_bin_above_the_exact_one() -> None:
    lengths, batches, gaps = micro_batches(0, [0, 0, 1, 3, 5, 0, 2, 0, 0])
    metrics = counted(lengths, batches).metrics(Alone())
    fresh = [gap for (lag, _), own in gaps.items() if lag == 0 for gap in own]
    for percent in (50, 90, 99):
        expected = nearest_rank(fresh, percent)
        assert expected <= metrics[f"train/logprob_gap_p{percent}"] < expected * RESOLUTION
    for quarter in range(4):
        expected = nearest_rank(gaps[0, quarter], 99)
        assert expected <= metrics[f"train/logprob_gap_p99_quarter_{quarter + 1}"] < expected * RESOLUTION
    for lag, its in ((1, (1,)), (2, (2,)), (3, (3, 5))):
        old = [gap for (each, _), own in gaps.items() if each in its for gap in own]
        assert nearest_rank(old, 99) <= metrics[f"train/logprob_gap_p99_lag_{lag}"] < nearest_rank(old, 99) * RESOLUTION


def test_means_are_of_all_tokens_of_their_lag() -> None:
    lengths, batches, gaps = micro_batches(1, [0, 1, 0, 0, 1])
    metrics = counted(lengths, batches).metrics(Alone())
    fresh, old = ([gap for (lag, _), own in gaps.items() if lag == wanted for gap in own] for wanted in (0, 1))
    assert metrics["train/logprob_gap"] == pytest.approx(sum(map(abs, fresh)) / len(fresh))
    assert metrics["train/logprob_gap_max"] == max(map(abs, fresh))
    assert metrics["train/logprob_gap_k1"] == pytest.approx(sum(fresh) / len(fresh))  # ln μ - ln π of μ's own tokens
    assert metrics["train/logprob_gap_k3"] == pytest.approx(sum(math.exp(-g) - 1 + g for g in fresh) / len(fresh))
    assert metrics["train/logprob_gap_k3_lag_1"] == pytest.approx(sum(math.exp(-g) - 1 + g for g in old) / len(old))
    assert "train/logprob_gap_k3_lag_2" not in metrics


def test_ranks_together_report_what_one_would_report() -> None:
    lengths, batches, _ = micro_batches(2, [0, 0, 1, 2, 0, 3, 0])
    assert len(batches) > 1
    halves = [counted(lengths, batches[:1]), counted(lengths, batches[1:])]
    together = [
        half.metrics(Halves([other._counted, other._largest]))
        for half, other in zip(halves, reversed(halves), strict=True)
    ]
    alone = counted(lengths, batches).metrics(Alone())
    assert together[0] == together[1] == pytest.approx(alone, rel=1e-14)
    assert {name: value for name, value in together[0].items() if "_p" in name} == {
        name: value for name, value in alone.items() if "_p" in name
    }


def test_idle_batch_counts_for_nothing_and_nan_as_the_worst() -> None:
    lengths, (batch, *_), _ = micro_batches(3, [0])
    assert counted(lengths, [replace(batch, idle=True)]).metrics(Alone()) == {}
    broken = replace(batch, behaviour_logprobs_N=torch.full_like(batch.behaviour_logprobs_N, math.nan))
    assert counted(lengths, [broken]).metrics(Alone())["train/logprob_gap_p50"] == 32.0
