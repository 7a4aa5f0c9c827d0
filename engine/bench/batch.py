"""Seconds of a batch's way in: from arrays of single trajectories to a rank's first pass, and all its micro-batches.

One thread; of several ranks, the first one. The bound is of memory: the bytes of a token, read and written once each,
at the speed of a plain copy on this machine. What a step fixes before its first pass reads no tokens, and has none.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, TypeVar

import numpy as np
import torch

from engine.bench.report import Report, Row, rounded
from engine.policy.pace import flops_of_sequence
from engine.spec.fit.known_models import known_shape
from engine.spec.job import JobSpec, TrainerSpec
from engine.training.batch import TrainingBatch, TrajectoryArrays
from engine.training.settings import TrainerSettings
from engine.training.step.dealing import Costs, deal
from engine.training.step.loss import StepLoss, StepModels
from engine.training.step.micro_batch import BatchedStep, MicroBatch, batch_step
from engine.training.step.ranks import Alone
from engine.training.step.scoring import TokenScores

Made = TypeVar("Made")

GROUP_SIZE: Final = 16
MAX_TOKENS: Final = 8_192
LONGEST: Final = 32_768
# Of each token: id, log-prob, staleness and mark, as they come, and as a micro-batch has them: ids, positions, places,
# targets, slots, trajectories, rows and staleness of 8 bytes, log-probs of 4.
BYTES_IN: Final = 4 + 4 + 4 + 1
BYTES_OUT: Final = 8 * 8 + 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--samples", type=int, default=8_192)
    parser.add_argument("--length", type=int, default=4_096, help="tokens of each, a tenth of them a prompt")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--model", default="Qwen3-8B", help="whose work is dealt to the ranks")


def measure(arguments: argparse.Namespace) -> Report:
    torch.set_num_threads(1)
    work_of = _work_of(arguments.model)
    speed = _copied_bytes_per_s()
    rows = [*_way_in(arguments, work_of, speed), *_balance(arguments, work_of)]
    remarks = [
        f"{arguments.samples:,} samples of {arguments.length:,} tokens, micro-batches of {MAX_TOKENS:,}",
        f"bound: bytes read and written once at {speed / 1e9:.1f} GB/s, a plain copy",
        f"balance: the largest rank's work over the mean, of up to {LONGEST:,} tokens, attention's square included; "
        "in step: where ranks wait for each other after every micro-batch",
    ]
    return Report(bench="batch", rows=rows, remarks=remarks)


def _way_in(arguments: argparse.Namespace, work_of: Callable[[int], float], speed: float) -> Iterator[Row]:
    trajectories = list(_trajectories(arguments.samples, arguments.length))
    num_tokens = arguments.samples * arguments.length

    def row(part: str, num: int, seconds: float, num_bytes: float = 0.0) -> Row:
        bound = num * num_bytes / speed
        return {
            "part": part,
            "million_tokens": round(num / 1e6, 1),
            "seconds": rounded(seconds),
            "bound": rounded(bound) or None,
            "times_the_bound": rounded(seconds / bound) if bound else None,
        }

    seconds, batch = _timed(lambda: TrainingBatch.joined(trajectories))
    yield row("joined", num_tokens, seconds, BYTES_IN)
    for num_ranks in sorted({1, arguments.ranks}):
        own = num_tokens // num_ranks
        seconds, _ = _timed(partial(_loss(arguments.model, num_ranks).begin, batch))
        yield row(f"begun, {num_ranks} ranks", own, seconds)
        step = batch_step(batch, max_tokens=MAX_TOKENS, device="cpu", num_ranks=num_ranks, work_of=work_of)
        seconds, _ = _timed(partial(_make_all, step))
        yield row(f"micro-batches, {num_ranks} ranks", own, seconds, BYTES_IN + BYTES_OUT)


class _FirstOf(Alone):
    def __init__(self, count: int) -> None:
        self.count = count


def _loss(model: str, num_ranks: int) -> StepLoss:
    """All that a step fixes before its first pass."""
    shape = known_shape(model)
    return StepLoss(
        TrainerSettings.of(JobSpec(name="bench", trainer=TrainerSpec(micro_batch_tokens=MAX_TOKENS))),
        models=StepModels(policy=_no_pass),
        device="cpu",
        num_weights=shape.num_weights,
        attention_width=shape.num_layers * shape.num_heads * shape.head_dim,
        ranks=_FirstOf(num_ranks),
    )


def _no_pass(batch: MicroBatch) -> TokenScores:
    raise AssertionError("nothing is scored before the first update")


def _make_all(step: BatchedStep) -> None:
    for _ in step.micro_batches:
        pass


def _trajectories(num: int, length: int) -> Iterator[TrajectoryArrays]:
    draw = np.random.default_rng(0)
    prompt_length = max(length // 10, 1)
    nothing_N = np.empty(0, dtype=np.int32)
    for index in range(num):
        if index % GROUP_SIZE == 0:
            prompt = draw.integers(0, 150_000, prompt_length, dtype=np.int32)
        num_said = length - prompt_length
        yield TrajectoryArrays(
            group=index // GROUP_SIZE,
            prompt_ids=prompt,
            response_ids=draw.integers(0, 150_000, num_said, dtype=np.int32),
            behaviour_logprobs=np.full(num_said, -1.0, dtype=np.float32),
            written=nothing_N.astype(np.bool_),
            staleness=nothing_N,
            reward=float(index % 2),
            trusted=True,
            cut=False,
        )


def _balance(arguments: argparse.Namespace, work_of: Callable[[int], float]) -> Iterator[Row]:
    draw = np.random.default_rng(0)
    lengths = np.minimum(draw.lognormal(7.5, 1.2, arguments.samples).astype(np.int64) + 1, LONGEST).tolist()
    costs = Costs(lengths=lengths, work=[work_of(length) for length in lengths])
    shares = deal(range(len(lengths)), costs, max_tokens=MAX_TOKENS, num_ranks=arguments.ranks)
    by_rank = [[sum(costs.work[member] for member in own) for own in micro_batches] for micro_batches in shares]
    loads = [sum(of_rank) for of_rank in by_rank]
    mean, million_tokens = sum(loads) / arguments.ranks, round(sum(lengths) / 1e6, 1)
    yield {"part": "balance", "million_tokens": million_tokens, "max_over_mean": rounded(max(loads) / mean)}
    in_step = sum(map(max, zip(*by_rank, strict=True)))
    yield {"part": "balance, in step", "million_tokens": million_tokens, "max_over_mean": rounded(in_step / mean)}


def _work_of(model: str) -> Callable[[int], float]:
    shape = known_shape(model)
    width = shape.num_layers * shape.num_heads * shape.head_dim
    return partial(flops_of_sequence, shape.num_weights, width)


def _copied_bytes_per_s() -> float:
    """Read and written, of what no cache holds."""
    source = np.ones(2**28, dtype=np.uint8)
    target = np.zeros_like(source)
    seconds = min(_timed(lambda: np.copyto(target, source))[0] for _ in range(3))
    return 2 * len(source) / seconds


def _timed(make: Callable[[], Made]) -> tuple[float, Made]:
    started = time.perf_counter()
    made = make()
    return time.perf_counter() - started, made
