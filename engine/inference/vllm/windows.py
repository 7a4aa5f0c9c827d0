"""Windows: which part of which published tensor is where in a parameter of a worker.

    qkv_proj of worker 1 of 2   ┌─ rows of q_proj, from 32 ─┐ ◀ place 0
                                ├─ rows of k_proj, from 16 ─┤ ◀ place 32
                                └─ rows of v_proj, from 16 ─┘ ◀ place 48

vLLM's loaders cut shards by the same rules and do not publish them. Numbers only: tests need no vLLM.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import Tensor

from engine.weights.parts import Rectangle


class Window(NamedTuple):
    name: str
    """Of the published tensor."""
    first: int
    """The first row in the tensor; of a tensor of one dimension, the first element."""
    size: int
    place: int = 0
    """The row or element in the parameter."""
    column: int = 0
    """The first column in the tensor; in the parameter, columns begin at 0."""
    num_columns: int | None = None
    """None: all of the parameter's."""

    def cut(self, parameter: Tensor) -> Tensor:
        rows = parameter[self.place : self.place + self.size]
        return rows if rows.dim() < 2 else rows[:, : self.num_columns]

    def rectangle(self, values: Tensor) -> Rectangle:
        """The place of the values that `cut` returned."""
        if values.dim() < 2:
            return Rectangle(0, self.first, 1, len(values))
        return Rectangle(self.first, self.column, *values.shape)


def stacked_windows(
    names: Sequence[str], sizes: Sequence[int], replicas: Sequence[int], *, rank: int, num_ranks: int
) -> Iterator[Window]:
    """Matrices in one parameter, each divided by its rows. `sizes`: rows on all ranks. `replicas`: ranks that hold the
    same rows. One name: the published tensor has the matrices one below the other too."""
    place = above = 0
    for index, (total, num_replicas) in enumerate(zip(sizes, replicas, strict=True)):
        size = total // num_ranks
        first = rank // num_replicas * size
        yield (
            Window(names[index], first, size, place) if len(names) > 1 else Window(names[0], above + first, size, place)
        )
        place, above = place + size, above + total // num_replicas


def expert_windows(
    gate: str, up: str, down: str, *, shape: Sequence[int], half: int, rank: int, num_ranks: int
) -> tuple[tuple[Window, ...], tuple[Window, ...]]:
    """One expert's windows in its `w13` and in its `w2`, which a kernel may have padded. `shape`: of gate. `half`: the
    first row of up in `w13`."""
    size, height = shape[0] // num_ranks, shape[1]
    first = rank * size
    return (
        (Window(gate, first, size, num_columns=height), Window(up, first, size, place=half, num_columns=height)),
        (Window(down, 0, height, column=first, num_columns=size),),
    )
