"""Weights from trainer to replicas: the trainer's stall, the time until the last relay has verified them, and the time
that a replica's decoding is blocked by the install.

Relays are real: a process each, links over TCP, shared memory, every hash computed. Versions travel whole and as
deltas, the slower one only now and then. On one machine all relays share its cores and loopback, so the time to the
last one grows with their number, unlike on separate hosts; the stall must not grow. In turns with the relays the same
bytes go through a chain of as many bare sockets (`loopback`).
"""

import argparse
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ray

from engine.live.body.actor import CONCURRENCY_GROUPS
from engine.live.process.links import Links
from engine.live.process.ray_session import disconnect, start_own
from engine.live.relay.actor import RelayActor
from engine.live.relay.view import RelayView
from engine.live.weights.segments import FOLDER, sweep
from engine.pipeline.messages.addresses import TRAINER, relay_address, rollout_address
from engine.pipeline.messages.to_relay import WeightsWanted
from engine.policy.lineage import NO_WEIGHTS
from engine.scorecard.tables import Row, Spread, Value, rounded
from engine.spec.job import JobSpec
from tests.bench.engine.relays.install import InstallerActor
from tests.bench.engine.relays.loopback import chain
from tests.bench.engine.relays.publisher import Published, PublisherActor
from tests.bench.engine.report import Report

WITHIN_S: Final = 300.0
LOOK_EVERY_S: Final = 0.02
# The slower kind runs once after this many of the faster.
ANCHOR_EVERY: Final = 2
# A share of free memory; the rest is for the machine, and for the processes' memory other than versions.
MEMORY_SHARE: Final = 0.9


class LoopbackLinks(Links):
    def address(self) -> str:
        return "127.0.0.1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sizes", type=int, nargs="+", default=[50, 200], help="MB of bf16 weights")
    parser.add_argument("--relays", type=int, nargs="+", default=[1, 2, 4], help="relays in the chain")
    parser.add_argument("--repeats", type=int, default=5, help="versions of each kind")


def measure(arguments: argparse.Namespace) -> Report:
    remarks = ["All relays run on this machine: loopback and its cores bound the time to the last one."]
    start_own()
    try:
        rows = [
            row
            for num_relays in arguments.relays
            for row in rows_of(num_relays, arguments.sizes, arguments.repeats, remarks.append)
        ]
    finally:
        disconnect()
        sweep()
    return Report(bench="relay", rows=rows, remarks=remarks)


def rows_of(num_relays: int, sizes_mb: Sequence[int], repeats: int, remark: Callable[[str], None]) -> Iterator[Row]:
    with _tier(num_relays) as tier, chain(num_relays - 1) as loopback:
        for wanted_mb in sizes_mb:
            size_mb = min(wanted_mb, _largest_mb(num_relays))
            if size_mb < wanted_mb:
                remark(f"{num_relays} relays: {size_mb} MB instead of {wanted_mb}, as much as the free memory holds.")
            tier.publisher.resize.remote(size_mb * 10**6)
            for _ in range(ANCHOR_EVERY + 1):  # pages, links and heartbeats are there before anything is measured
                tier.publish()
            taken, bare = [], []
            for _ in range(repeats * (ANCHOR_EVERY + 1 if num_relays > 1 else 1)):
                taken.append(tier.publish())
                bare.append(loopback(size_mb * 10**6) if num_relays > 1 else 0.0)
            yield from _rows_of_size(num_relays, size_mb, taken, Spread.of(bare).median, tier.num_buried)
            yield _install_row(tier, num_relays, size_mb, repeats)


def _rows_of_size(
    num_relays: int, size_mb: int, taken: Sequence[tuple[Published, int]], loopback_s: float, num_buried: int
) -> Iterator[Row]:
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
        row: dict[str, Value] = {
            "size_mb": size_mb,
            "relays": num_relays,
            "what": kind,
            "sent_mb": rounded(sent.median) if num_relays > 1 else 0.0,
            **stalls.columns("stall_ms"),
            **arrivals.columns("last_relay_s"),
        }
        if num_relays > 1:
            after_s = Spread.of([published.everywhere_s - published.stall_s for published, _ in ours]).median
            row |= {"after_the_stall_s": rounded(after_s), "loopback_s": rounded(loopback_s)}
            row |= {"times_loopback": round(after_s / loopback_s, 2)}
        yield row | {"declared_dead": num_buried}


def _install_row(tier: "Tier", num_relays: int, size_mb: int, repeats: int) -> Row:
    installs, copies = (Spread.of(seconds) for seconds in zip(*tier.installs(repeats), strict=True))
    return {
        "size_mb": size_mb,
        "relays": num_relays,
        "what": "install",
        **installs.columns("install_s"),
        "copy_s": rounded(copies.median),
        "times_a_copy": round(installs.median / copies.median, 2),
    }


@dataclass(slots=True)
class Tier:
    publisher: Any
    relays: Sequence[Any]
    make_remote: Any

    def publish(self) -> tuple[Published, int]:
        """The time that it took, and the bytes that came to the last relay."""
        before = self._view(self.relays[-1])
        version = ray.get(self.publisher.publish.remote())
        wait_until(lambda: ray.get(self.publisher.published.remote(version)) is not None)
        published: Published = ray.get(self.publisher.published.remote(version))
        wait_until(lambda: all(version in self._view(relay).seals for relay in self.relays))  # and the cores are free
        return published, self._view(self.relays[-1]).num_bytes - before.num_bytes

    @property
    def num_buried(self) -> int:
        return sum(self._view(relay).num_buried for relay in self.relays)

    def installs(self, repeats: int) -> list[tuple[float, float]]:
        """Of a replica of the last relay: (an install, a copy of the bytes)."""
        replica = self.make_remote(InstallerActor).remote()
        last = self.relays[-1]
        last.connect.remote({rollout_address(0): replica})
        last.deliver.remote(WeightsWanted(replica=0, incarnation=0, held=NO_WEIGHTS, exact=None))
        try:
            wait_until(lambda: bool(ray.get(replica.is_served.remote())))
            seconds: list[tuple[float, float]] = ray.get(replica.measure.remote(repeats))
            return seconds
        finally:
            ray.kill(replica, no_restart=True)

    def _view(self, relay: Any) -> RelayView:
        view: RelayView = ray.get(relay.view.remote())
        return view


def wait_until(holds: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + WITHIN_S
    while not holds():
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"not within {WITHIN_S:.0f} s")
        time.sleep(LOOK_EVERY_S)


@contextmanager
def _tier(num_relays: int) -> Iterator[Tier]:
    links = LoopbackLinks()
    spec = JobSpec.model_validate({"name": "bench", "rollout": {"replicas": num_relays}})
    options: dict[str, Any] = {"num_cpus": 0, "max_restarts": 0, "concurrency_groups": CONCURRENCY_GROUPS}
    make_remote: Any = ray.remote(**options)
    publisher = make_remote(PublisherActor).remote(spec=spec, links=links)
    relays = {
        relay_address(host): make_remote(RelayActor).remote(
            spec=spec, host=host, hosts=range(num_relays), incarnation=0, links=links, anchor_every=ANCHOR_EVERY
        )
        for host in range(num_relays)
    }
    publisher.connect.remote(relays)
    for relay in relays.values():
        relay.connect.remote({**relays, TRAINER: publisher})
    try:
        yield Tier(publisher, list(relays.values()), make_remote)
    finally:
        for actor in (publisher, *relays.values()):
            ray.kill(actor, no_restart=True)


def _largest_mb(num_relays: int) -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    shared = os.statvfs(FOLDER)
    free = MEMORY_SHARE * min(available, shared.f_bavail * shared.f_frsize)
    # The trainer's version, which its relay adopts, the next, and memory for the one after; two of every other relay;
    # and a model that takes one.
    return int(free / (3 + 2 * (num_relays - 1) + 1) / 10**6)
