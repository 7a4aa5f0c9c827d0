"""Constants of the cost models: each with its origin, so that nobody takes an assumption for a measurement.

    data sheet   a maker's figure
    given        agreed on beforehand for arithmetic on paper
    fitted       so that a published figure comes out (calibration.py says which, and what is left over)
    measured     on this machine
    assumed      by us; the headline is told with each of them at its lowest and its highest

Invariant: a cost asks the book for a constant and never the constant for its value, so that a sweep reaches all of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, Self

Origin = Literal["data sheet", "given", "fitted", "measured", "assumed"]

SWEEP: Final = (0.5, 2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    name: str
    value: float
    unit: str
    origin: Origin
    source: str
    """Where the figure is from, or why it was assumed."""
    sweep: tuple[float, float] = SWEEP
    """Factors, where it is assumed: narrower than the half and the double where those would be nonsense."""


@dataclass(frozen=True, slots=True)
class Book:
    """The constants of one run: as they stand, but for those that a sweep multiplies."""

    factors: Mapping[str, float] = field(default_factory=dict)

    def __call__(self, constant: Constant) -> float:
        return constant.value * self.factors.get(constant.name, 1.0)

    def with_factor(self, constant: Constant, factor: float) -> Self:
        return type(self)({**self.factors, constant.name: factor})


AS_THEY_STAND: Final = Book()
