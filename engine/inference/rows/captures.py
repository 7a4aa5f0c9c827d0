"""Steps as CUDA graphs: a repeated kind of step is one launch instead of a launch for each kernel.

Invariants:
- the first step of a kind runs without a graph, which chooses kernels and allocates memory; the second is captured and
  replayed; further ones are replayed. All of these are real steps, none is a warm-up;
- a graph's inputs and outputs keep their addresses: when `where` changes, all kinds are captured again. Weights are
  installed in place, so a capture outlives versions;
- captures share one memory pool: they never run at the same time.
"""

from collections.abc import Callable, Hashable
from typing import Any

import torch


class Captures:
    """On a device without CUDA graphs every step runs without one."""

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
            graph = self._graphs[kind] = self._capture(step)
        graph.replay()

    def _capture(self, step: Callable[[], None]) -> torch.cuda.CUDAGraph:
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        # Other threads of a replica may allocate memory of the same device during a capture.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            step()
        return graph
