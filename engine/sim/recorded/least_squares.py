"""Least squares for a few unknowns, none below zero, by the normal equations.

Invariants:
- unknowns that the observations cannot separate raise `Indistinct`;
- an unknown whose solution is below zero becomes 0, and the others are fitted again without it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from operator import mul
from typing import Final

# Of the columns' common direction: what differs by less than this is rounding, or noise taken for an effect.
LEAST_APART: Final = 1e-4


class Indistinct(ValueError):
    """Some of the unknowns always come in the same proportion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    values: tuple[float, ...]
    errors: tuple[float, ...]
    """Of each, by the scatter that is left (one standard deviation)."""
    residual: float
    """Root mean square of what is missed, as a share of the mean observation."""


def fitted(rows: Sequence[Sequence[float]], seconds: Sequence[float]) -> Solution:
    """`rows`: how much of each unknown is in each observation."""
    size = len(rows[0])
    kept = list(range(size))
    while True:
        taken = [[row[at] for at in kept] for row in rows]
        values, spreads = _solved(taken, seconds)
        least = min(values, default=0.0)
        if least >= 0:
            break
        del kept[values.index(least)]
    pairs = list(zip(taken, seconds, strict=True))
    squares = sum((sum(map(mul, row, values)) - at) ** 2 for row, at in pairs)
    scatter = sqrt(squares / max(1, len(rows) - len(kept)))
    return Solution(
        values=tuple(values[kept.index(at)] if at in kept else 0.0 for at in range(size)),
        errors=tuple(scatter * spreads[kept.index(at)] if at in kept else 0.0 for at in range(size)),
        residual=sqrt(squares / len(rows)) / (sum(seconds) / len(seconds)),
    )


def _solved(rows: Sequence[Sequence[float]], seconds: Sequence[float]) -> tuple[list[float], list[float]]:
    """The unknowns, and the error of each for a scatter of 1. Columns are scaled to length 1, so that angles and not
    units decide whether unknowns can be separated."""
    size = len(rows[0])
    if len(rows) < size:
        raise Indistinct
    scales = [sqrt(sum(row[at] ** 2 for row in rows)) for at in range(size)]
    if not all(scales):
        raise Indistinct
    scaled = [[row[at] / scales[at] for at in range(size)] for row in rows]
    matrix = [[sum(row[i] * row[j] for row in scaled) for j in range(size)] for i in range(size)]
    inverse = _inverse(matrix)
    right = [sum(row[i] * at for row, at in zip(scaled, seconds, strict=True)) for i in range(size)]
    values = [sum(map(mul, inverse[at], right)) / scales[at] for at in range(size)]
    return values, [sqrt(inverse[at][at]) / scales[at] for at in range(size)]


def _inverse(matrix: Sequence[Sequence[float]]) -> list[list[float]]:
    """By Gauss and Jordan. The matrix is positive, so its diagonal may lead."""
    size = len(matrix)
    rows = [[*row, *(float(at == other) for other in range(size))] for at, row in enumerate(matrix)]
    for at in range(size):
        if rows[at][at] < LEAST_APART:
            raise Indistinct
        rows[at] = [each / rows[at][at] for each in rows[at]]
        for other in range(size):
            if other != at:
                factor = rows[other][at]
                rows[other] = [one - factor * lead for one, lead in zip(rows[other], rows[at], strict=True)]
    return [row[size:] for row in rows]
