"""The hand-over of weights by a trainer at true width, against one copy of the same bytes: the pause of training.

The weights are float32 rows of a decoder of 8B's width, all in one process or each rank's in its own, on a real Ray;
they are handed over as bf16 in shared memory. For comparison one thread copies the same bytes into memory whose pages
are faulted in. Every process computes with one thread. Then the halves of two hosts are assembled, as the leading relay
does in parallel with training. `bench relay` measures the rest of the way to the replicas.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any, Final

import torch

from engine.live.process.links import Links
from engine.live.process.ray_session import disconnect, start_own
from engine.live.trainer.publishing import Publishing, PublishingAlone, PublishingTogether
from engine.live.trainer.ranks import RankGroup
from engine.live.weights.handover import Handover
from engine.live.weights.segments import sweep
from engine.models.decoder import Decoder, DecoderConfig
from engine.models.families.trained_model import public_views
from engine.policy.lineage import WeightsId
from engine.scorecard.tables import Row, Spread, rounded
from engine.training.parts.layout import decoder_places, rows_of
from engine.training.parts.published import Published, held_rows
from engine.training.ranks.world import World
from engine.weights.chunks import copy_bytes
from engine.weights.port import WeightVersion
from tests.bench.engine.relays import put_together
from tests.bench.engine.report import Report, in_turns

RANK: Final = {"num_cpus": 0}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--tensors", type=int, default=8, help="of 101 MB, of which two hosts have a half each")
    parser.add_argument("--repeats", type=int, default=9)


def measure(arguments: argparse.Namespace) -> Report:
    torch.set_num_threads(1)
    start_own()
    try:
        rows = [row for num_ranks in arguments.ranks for row in _rows(num_ranks, arguments)]
    finally:
        disconnect()
        sweep()
    rows += put_together.rows(num_tensors=arguments.tensors, repeats=arguments.repeats)
    remark = f"8B's width, {arguments.layers} layers, vocabulary {arguments.vocabulary:,}, tied; bf16 of float32"
    return Report(bench="handover", rows=rows, remarks=[remark])


def _rows(num_ranks: int, arguments: argparse.Namespace) -> Iterator[Row]:
    with _hand_over(num_ranks, partial(RowsOnly, arguments.layers, arguments.vocabulary)) as (hand_over, num_bytes):
        contestants = {"copy": _copy_of(num_bytes), "handover": hand_over}
        for run in contestants.values():
            run()
        samples = in_turns(contestants, repeats=arguments.repeats)
    copy = Spread.of(samples["copy"]).median
    for name, seconds in samples.items():
        spread = Spread.of(seconds)
        yield {
            "ranks": num_ranks,
            "what": name,
            **spread.columns("seconds"),
            "gb_per_s": rounded(num_bytes / spread.median / 1e9),
            "times_a_copy": round(spread.median / copy, 2),
        }


@contextmanager
def _hand_over(num_ranks: int, make: Any) -> Iterator[tuple[Callable[[], float], int]]:
    """What takes the seconds of one, with memory for the next one ready before and after it, as it is after a step;
    and its bytes."""
    links = Links()
    handover = Handover(owner=links.run)
    steps = count(1)
    try:
        if num_ranks == 1:
            publishing: Publishing = PublishingAlone(make(device="cpu", world=World.alone()), handover)
            get_ready: Callable[[], object] = handover.wait_until_ready
        else:
            group = RankGroup(make, device="cpu", options=[RANK] * (num_ranks - 1))
            publishing = PublishingTogether(group, handover, links)
            get_ready = partial(group.request, "wait_until_ready", dict.fromkeys(range(num_ranks), ()))

        def run() -> float:
            get_ready()
            weights = WeightsId(0, next(steps))
            started = time.perf_counter()
            publishing.publish(weights)
            taken = time.perf_counter() - started
            publishing.forget(weights)
            get_ready()
            return taken

        first = WeightsId(0, 0)
        num_bytes = publishing.publish(first).num_bytes
        publishing.forget(first)
        yield run, num_bytes
    finally:
        if num_ranks > 1:
            group.close()
        handover.close()


def _copy_of(num_bytes: int) -> Callable[[], float]:
    source, target = (torch.ones(num_bytes, dtype=torch.uint8) for _ in range(2))
    there, here = (memoryview(each.numpy().data) for each in (target, source))

    def run() -> float:
        started = time.perf_counter()
        copy_bytes(here, there)
        return time.perf_counter() - started

    return run


class RowsOnly:
    """A trainer's rank as far as it hands over."""

    def __init__(self, layers: int, vocabulary: int, *, device: str, world: World) -> None:
        config = _config(layers, vocabulary)
        with torch.device("meta"):
            model = Decoder(config, torch.float32)
        places = decoder_places(config, dict(model.named_parameters()))
        held = held_rows(lambda place: rows_of(world.index, world.count, place.shape[0]))
        self._values = {name: torch.randn(len(held(place))) for name, place in places.items()}
        self.published = Published(
            dict(model.named_parameters()),
            partial(public_views, config),
            config.dtype,
            values_of=self._values.__getitem__,
            held=held,
        )

    def snapshot(self, weights: WeightsId, *, allocate: Any = None) -> WeightVersion:
        return self.published.pack(weights, allocate)

    def close(self) -> None:
        self._values.clear()


def _config(layers: int, vocabulary: int) -> DecoderConfig:
    return DecoderConfig(
        vocab_size=vocabulary,
        width=4_096,
        num_layers=layers,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        mlp_width=12_288,
        max_positions=128,
        rope_theta=1e6,
        norm_eps=1e-6,
        tied=True,
        dtype=torch.bfloat16,
        qk_norm=True,
    )
