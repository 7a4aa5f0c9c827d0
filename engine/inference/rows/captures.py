"""Steps as CUDA graphs: a step of a kind that was met before is one launch instead of one a kernel.

Invariants:
- the first step of a kind runs as it is, which chooses kernels and finds memory; the second is captured and played,
  every further one is played: all are steps that count, none is made for show;
- what a step reads and writes lies where it lay when it was captured: `where` tells, and when it changes, all is
  captured anew. Weights are taken over in place, so versions come and go under a capture;
- captures share one pool of memory: they never run side by side.
"""

from collections.abc import Callable, Hashable
from typing import Any

import torch


class Captures:
    """Of nothing, on a device that has none: every step runs as it is."""

    def __init__(self, device: str, *, are_possible: bool = True) -> None:
        self._are_made = are_possible and torch.device(device).type == "cuda"
        self._met: set[Hashable] = set()
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._pool: Any = None
        self._where: Hashable = None

    def run(self, kind: Hashable, step: Callable[[], None], *, where: Hashable) -> None:
        if not self._are_made:
            step()
            return
        if where != self._where:
            self._graphs.clear()
            self._where = where
        graph = self._graphs.get(kind)
        if graph is None and kind not in self._met:
            self._met.add(kind)
            step()
            return
        if graph is None:
            graph = self._graphs[kind] = self._captured(step)
        graph.replay()

    def _captured(self, step: Callable[[], None]) -> torch.cuda.CUDAGraph:
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        # Other threads of a replica may ask for memory meanwhile, for what they do with the same device.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            step()
        return graph
