"""Runs processes as ranks of one trainer, which leave their results on a disk.

Ranks are forked from a process that has only imported what a rank needs. Fresh ranks import it themselves.
"""

import multiprocessing
import multiprocessing.queues
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerContext, SpawnContext
from pathlib import Path
from typing import Any, Final

import torch

from engine.training.ranks.world import World

ENDED_WITHIN_S: Final = 600
TIMEOUT_S: Final = 120.0


def run_ranks(
    num_ranks: int,
    act: Callable[..., None],
    *given: Any,
    are_fresh: bool = False,
    within_s: float = ENDED_WITHIN_S,
) -> list[int | None]:
    """Runs `act(world, *given)`, a module's function, in a process for each rank. Returns the exit codes."""
    context: SpawnContext | ForkServerContext
    context = multiprocessing.get_context("spawn") if are_fresh else multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.engine.training.ranks.imported"])
    addresses = context.Queue()
    ranks = [
        context.Process(target=_be_a_rank, args=(rank, num_ranks, addresses, act, given)) for rank in range(num_ranks)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(within_s)
        if rank.is_alive():
            rank.kill()
            rank.join()
    return [rank.exitcode for rank in ranks]


def _be_a_rank(
    rank: int,
    num_ranks: int,
    addresses: "multiprocessing.queues.Queue[str]",
    act: Callable[..., None],
    given: Sequence[Any],
) -> None:
    torch.set_num_threads(1)
    if rank:
        world = World.join(addresses.get(timeout=TIMEOUT_S), rank=rank, num_ranks=num_ranks, timeout_s=TIMEOUT_S)
    else:
        world = World.open(num_ranks=num_ranks, host="127.0.0.1", timeout_s=TIMEOUT_S)
        for _ in range(num_ranks - 1):
            addresses.put(world.address)
    act(world, *given)


def read_report(folder: Path, rank: int) -> str:
    return (folder / f"report-{rank}").read_text()


def write_report(folder: Path, world: World, what: str) -> None:
    (folder / f"report-{world.index}").write_text(what)
