"""Seconds of a batch's way in: from data's process, where it is records of finished groups, to a rank's micro-batches.

    data ──message──▶ trainer: one batch of arrays ──shared memory──▶ rank: a step begun ──▶ its micro-batches

On a Ray of this machine, one thread in each process; the median of several runs. The bound is memory: the bytes of a
token that must be read and written once, at the speed of a plain copy here. The work of a step before its first pass
reads no tokens, and has no bound.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np
import torch

from engine.fit.known_models import known_shape
from engine.pipeline.messages.to_trainer import BatchReady
from engine.pipeline.packed import Floats, Ints
from engine.pipeline.records import (
    BufferView,
    CompleteGroup,
    DataProgress,
    GroupKey,
    SampleKey,
    Trajectory,
    TrajectoryContent,
)
from engine.policy.lineage import WeightsId
from engine.scorecard.tables import Row, Spread, rounded
from engine.spec.job import JobSpec, TrainerSpec
from engine.training.batch import TrainingBatch
from engine.training.settings import TrainerSettings
from engine.training.step.dealing import Costs, deal
from engine.training.step.flops import flops_of_sequence
from engine.training.step.loss import StepFactory
from engine.training.step.micro_batch import MicroBatch, batch_step
from engine.training.step.models import StepModels
from engine.training.step.ranks import Alone
from engine.training.step.rounding import Rounding
from engine.training.step.scoring import TokenScores
from tests.bench.engine.report import Report
from tests.bench.engine.runs import own_ray

Made = TypeVar("Made")

GROUP_SIZE: Final = 16
MAX_TOKENS: Final = 8_192
LONGEST: Final = 32_768
# Bytes per token: its id and log-prob, as they travel; in the batch also its age and mark; and in a micro-batch
# ids, positions, places, targets, ages, slots, trajectories and rows of 8 bytes, and log-probs of 4.
TRAVELS: Final = 4 + 4
JOINED: Final = 4 + 4 + 4 + 1
MADE: Final = 8 * 8 + 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--samples", type=int, default=8_192)
    parser.add_argument("--length", type=int, default=4_096, help="tokens of each sample, a tenth of them prompt")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--model", default="Qwen3-8B", help="samples whose work is dealt to the ranks")
    parser.add_argument("--repeats", type=int, default=5)


def measure(arguments: argparse.Namespace) -> Report:
    work_of = _work_of(arguments.model)
    speed = _copied_bytes_per_s()
    with own_ray():
        rows = [*_way_in(arguments, speed), *_balance(arguments, work_of)]
    remarks = [
        f"{arguments.samples:,} samples of {arguments.length:,} tokens, micro-batches of {MAX_TOKENS:,}",
        f"bound: bytes read and written once at {speed / 1e9:.1f} GB/s, a plain copy",
        f"balance: the largest rank's work over the mean, of up to {LONGEST:,} tokens, attention's square included; "
        "in step: where ranks wait for each other after every micro-batch",
    ]
    return Report(bench="batch", rows=rows, remarks=remarks)


def _way_in(arguments: argparse.Namespace, speed: float) -> Iterator[Row]:
    import ray

    groups = tuple(_groups(arguments.samples // GROUP_SIZE, arguments.length))
    trainer: Any = ray.remote(_Trainer).remote()
    rank: Any = ray.remote(_Rank).remote()
    all_tokens = len(groups) * GROUP_SIZE * arguments.length
    own_tokens = all_tokens // arguments.ranks
    moved: dict[str, tuple[int, int]] = {
        "sent to the trainer": (all_tokens, TRAVELS),
        "one batch of arrays": (all_tokens, JOINED),
        "into shared memory": (all_tokens, JOINED),
        f"step begun, 1 of {arguments.ranks} ranks": (own_tokens, 0),
        f"all its micro-batches, 1 of {arguments.ranks} ranks": (own_tokens, JOINED + MADE),
        "step begun, 1 rank": (all_tokens, 0),
        "all its micro-batches, 1 rank": (all_tokens, JOINED + MADE),
    }
    ways = [_one_way(groups, trainer, rank, arguments) for _ in range(arguments.repeats + 1)][1:]
    for at, (part, (num_tokens, num_bytes)) in enumerate(moved.items()):
        spread, bound = Spread.of([seconds[at] for seconds in ways]), num_tokens * 2 * num_bytes / speed
        yield {
            "part": part,
            "million_tokens": round(num_tokens / 1e6, 1),
            **spread.columns("seconds"),
            "bound": rounded(bound) or None,
            "times_the_bound": rounded(spread.median / bound) if bound else None,
        }
    spread = Spread.of([sum(seconds[:4]) for seconds in ways])
    yield {
        "part": f"until the first pass of {arguments.ranks} ranks",
        "million_tokens": round(all_tokens / 1e6, 1),
        **spread.columns("seconds"),
    }


def _one_way(
    groups: tuple[CompleteGroup, ...], trainer: Any, rank: Any, arguments: argparse.Namespace
) -> Sequence[float]:
    import ray

    ray.get([trainer.start.remote(), rank.start.remote()])
    message = BatchReady(
        step=1, groups=groups, progress=DataProgress(), buffer=BufferView(num_ready=1, num_in_progress=0)
    )
    sent = time.perf_counter()
    delivered: float = ray.get(trainer.deliver.remote(message))
    joined, shared, holder = ray.get(trainer.share.remote())
    begun: list[float] = []
    for num_ranks in (arguments.ranks, 1):
        begun += ray.get(rank.begin.remote(holder[0], arguments.model, num_ranks))
    return delivered - sent, joined, shared, *begun


class _Trainer:
    def start(self) -> None:
        import engine.live.trainer.batch  # noqa: F401 - before it is measured

    def deliver(self, message: BatchReady) -> float:
        self._message = message
        return time.perf_counter()  # the same clock in every process of a machine

    def share(self) -> tuple[float, float, list[Any]]:
        import ray

        from engine.live.trainer.batch import batch_of

        joining, batch = _timed(partial(batch_of, self._message.groups, self._message.lineage, at=0))
        sharing, shared = _timed(partial(ray.put, batch))
        return joining, sharing, [shared]


class _Rank:
    def start(self) -> None:
        torch.set_num_threads(1)

    def begin(self, batch: TrainingBatch, model: str, num_ranks: int) -> tuple[float, float]:
        beginning, _ = _timed(partial(_step_factory(model, num_ranks).begin, batch))
        step = batch_step(batch, max_tokens=MAX_TOKENS, device="cpu", num_ranks=num_ranks, work_of=_work_of(model))
        making, _ = _timed(lambda: sum(1 for _ in step.micro_batches))
        return beginning, making


class _FirstOf(Alone):
    def __init__(self, count: int) -> None:
        self.count = count


def _step_factory(model: str, num_ranks: int) -> StepFactory:
    """The values that a step computes before its first pass."""
    shape = known_shape(model)
    return StepFactory(
        TrainerSettings.of(JobSpec(name="bench", trainer=TrainerSpec(micro_batch_tokens=MAX_TOKENS))),
        models=StepModels(policy=_no_pass),
        device="cpu",
        num_weights=shape.num_weights,
        attention_width=shape.num_layers * shape.num_heads * shape.head_dim,
        rounding=Rounding(of_terms=0.0, of_logits=0.0, vocab_size=shape.vocab_size),
        ranks=_FirstOf(num_ranks),
    )


def _no_pass(batch: MicroBatch) -> TokenScores:
    raise AssertionError("nothing is scored before the first update")


def _groups(num_groups: int, length: int) -> Iterator[CompleteGroup]:
    draw = np.random.default_rng(0)
    prompt_length = max(length // 10, 1)

    def ids(num: int) -> Ints:
        return Ints(draw.integers(0, 150_000, num, dtype=np.int32).tobytes())

    for ordinal in range(num_groups):
        prompt, key = ids(prompt_length), GroupKey(ordinal=ordinal)
        answers = [
            TrajectoryContent(
                prompt_ids=prompt,
                response_ids=ids(length - prompt_length),
                logprobs=Floats(np.full(length - prompt_length, -1.0, np.float32).tobytes()),
                prompt_text="x" * 4 * prompt_length,
                response_text="x" * 4 * (length - prompt_length),
                remark="",
            )
            for _ in range(GROUP_SIZE)
        ]
        yield CompleteGroup(
            key=key,
            trajectories=tuple(
                Trajectory(
                    key=SampleKey(group=key, sample=sample),
                    weights=WeightsId(0, 0),
                    reward=float(sample % 2),
                    num_tokens=len(content.response_ids),
                    content=content,
                )
                for sample, content in enumerate(answers)
            ),
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
    return partial(flops_of_sequence, shape.num_weights, shape.num_layers * shape.num_heads * shape.head_dim)


def _copied_bytes_per_s() -> float:
    """The rate of a copy (bytes read and written) larger than the caches."""
    source = np.ones(2**28, dtype=np.uint8)
    target = np.zeros_like(source)
    seconds = min(_timed(lambda: np.copyto(target, source))[0] for _ in range(3))
    return 2 * len(source) / seconds


def _timed(make: Callable[[], Made]) -> tuple[float, Made]:
    started = time.perf_counter()
    result = make()
    return time.perf_counter() - started, result
