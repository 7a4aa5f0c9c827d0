"""The cells of a grid on several processes: the largest first, so that the processes end together.

Invariant: results do not depend on the number of processes, nor on which cells were done before.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass

from engine.sim.compare.grid import Cell, Extent, Ran, run_cell
from engine.sim.compare.kept import Kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    ran: Ran
    num_done: int
    num_cells: int
    was_kept: bool = False


def run_on(
    extent: Extent,
    *,
    processes: int,
    kept: Kept | None = None,
    on_cell: Callable[[Progress], None] = lambda progress: None,
) -> list[Ran]:
    """`on_cell` is called with each cell as it ends."""
    cells = list(extent.cells())
    known = {} if kept is None else kept.load()
    done = {cell: known[cell] for cell in cells if cell in known}
    for at, ran in enumerate(done.values(), start=1):
        on_cell(Progress(ran=ran, num_done=at, num_cells=len(cells), was_kept=True))
    for ran in _run([cell for cell in cells if cell not in done], extent, processes):
        done[ran.cell] = ran
        if kept is not None:
            kept.add(ran)
        on_cell(Progress(ran=ran, num_done=len(done), num_cells=len(cells)))
    return [done[cell] for cell in cells]


def _run(cells: list[Cell], extent: Extent, processes: int) -> Iterator[Ran]:
    by_size = sorted(cells, key=lambda cell: -cell.work(extent))
    if processes == 1 or len(cells) < 2:
        yield from (run_cell(cell, extent) for cell in by_size)
        return
    with ProcessPoolExecutor(processes) as pool:
        futures: list[Future[Ran]] = [pool.submit(run_cell, cell, extent) for cell in by_size]
        try:
            yield from (future.result() for future in as_completed(futures))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
