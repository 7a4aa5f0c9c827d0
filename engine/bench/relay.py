"""Weights on their way: how long the trainer stands still, and when the last relay has them, verified.

Relays are real: a process each, links over TCP, shared memory, every hash taken. Versions travel whole and as deltas in
turns. On one machine all of them share its cores and its loopback, so the time to the last relay grows with their
number here, where on hosts of their own it would not; the stall must not grow anywhere.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import ray

from engine.bench.relay_publisher import Published, PublisherActor
from engine.bench.report import Report, Row, Spread, rounded
from engine.live.body.actor import CONCURRENCY_GROUPS
from engine.live.process.links import Links
from engine.live.process.ray_session import disconnect, start_own
from engine.live.relay.actor import RelayActor
from engine.live.relay.body import RelayView
from engine.live.weights.segments import sweep
from engine.pipeline.messages.addresses import TRAINER, relay_address
from engine.spec.job import JobSpec

WITHIN_S: Final = 300.0
LOOK_EVERY_S: Final = 0.02
# Whole and delta in turns.
ANCHOR_EVERY: Final = 2
# A relay holds two versions while one arrives; the rest is the trainer's copies and the machine's own.
MEMORY_SHARE: Final = 0.6


class LoopbackLinks(Links):
    def address(self) -> str:
        return "127.0.0.1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sizes", type=int, nargs="+", default=[50, 200], help="MB of bf16 weights")
    parser.add_argument("--relays", type=int, nargs="+", default=[1, 2, 4], help="relays in the chain")
    parser.add_argument("--repeats", type=int, default=5, help="versions of each kind")


def measure(arguments: argparse.Namespace) -> Report:
    found = rows(sizes_mb=arguments.sizes, relays=arguments.relays, repeats=arguments.repeats)
    skipped = [
        f"{size} MB to {relays} relays does not fit this machine's memory."
        for size in arguments.sizes
        for relays in arguments.relays
        if not _fits(size, relays)
    ]
    remarks = ["All relays run on this machine: loopback and its cores bound the time to the last one."]
    return Report(bench="relay", rows=found, remarks=[*remarks, *skipped])


def rows(*, sizes_mb: Sequence[int], relays: Sequence[int], repeats: int) -> list[Row]:
    start_own()
    try:
        return [row for num_relays in relays for row in _rows_of(num_relays, sizes_mb, repeats)]
    finally:
        disconnect()
        sweep()


def _rows_of(num_relays: int, sizes_mb: Sequence[int], repeats: int) -> Iterator[Row]:
    fitting = [size for size in sizes_mb if _fits(size, num_relays)]
    if not fitting:
        return
    with _tier(num_relays) as (publisher, last):
        for size_mb in fitting:
            publisher.resize.remote(size_mb * 10**6)
            for _ in range(ANCHOR_EVERY + 1):  # pages, links and heartbeats are there before anything is measured
                _publish(publisher, last)
            taken = [_publish(publisher, last) for _ in range(repeats * (ANCHOR_EVERY if num_relays > 1 else 1))]
            yield from _rows_of_size(num_relays, size_mb, taken)


def _rows_of_size(num_relays: int, size_mb: int, taken: Sequence[tuple[Published, int]]) -> Iterator[Row]:
    kinds: dict[str, Callable[[int], bool]] = {
        "whole": lambda num_bytes: num_relays == 1 or num_bytes > size_mb * 10**6 / 2,
        "delta": lambda num_bytes: num_relays > 1 and num_bytes <= size_mb * 10**6 / 2,
    }
    for kind, is_kind in kinds.items():
        ours = [(published, num_bytes) for published, num_bytes in taken if is_kind(num_bytes)]
        if not ours:
            continue
        stalls = Spread.of([published.stall_s * 1e3 for published, _ in ours])
        arrivals = Spread.of([published.everywhere_s for published, _ in ours])
        sent = Spread.of([num_bytes / 10**6 for _, num_bytes in ours])
        yield {
            "size_mb": size_mb,
            "relays": num_relays,
            "travels": kind,
            "sent_mb": rounded(sent.median) if num_relays > 1 else 0.0,
            **stalls.columns("stall_ms"),
            **arrivals.columns("last_relay_s"),
        }


def _publish(publisher: Any, last: Any) -> tuple[Published, int]:
    """The time that it took, and the bytes that came to the last relay."""
    before: RelayView = ray.get(last.view.remote())
    version = ray.get(publisher.publish.remote())
    give_up_at = time.monotonic() + WITHIN_S
    while True:
        published: Published | None = ray.get(publisher.published.remote(version))
        if published is not None:
            after: RelayView = ray.get(last.view.remote())
            return published, after.num_bytes - before.num_bytes
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"version {version} was not everywhere within {WITHIN_S:.0f} s")
        time.sleep(LOOK_EVERY_S)


@contextmanager
def _tier(num_relays: int) -> Iterator[tuple[Any, Any]]:
    links = LoopbackLinks()
    spec = JobSpec.model_validate({"name": "bench", "rollout": {"relays": num_relays, "replicas": num_relays}})
    options: dict[str, Any] = {"num_cpus": 0, "max_restarts": 0, "concurrency_groups": CONCURRENCY_GROUPS}
    make_remote: Any = ray.remote(**options)
    publisher = make_remote(PublisherActor).remote(spec=spec, links=links)
    relays = {
        relay_address(host): make_remote(RelayActor).remote(
            spec=spec, host=host, incarnation=0, links=links, anchor_every=ANCHOR_EVERY
        )
        for host in range(num_relays)
    }
    publisher.connect.remote(relays)
    for relay in relays.values():
        relay.connect.remote({**relays, TRAINER: publisher})
    try:
        yield publisher, relays[relay_address(num_relays - 1)]
    finally:
        for actor in (publisher, *relays.values()):
            ray.kill(actor, no_restart=True)


def _fits(size_mb: int, num_relays: int) -> bool:
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    weights = 8  # float32 master copies and temporaries of the publisher, in sizes of a bf16 version
    return (2 * num_relays + 3 + weights) * size_mb * 10**6 < MEMORY_SHARE * available
