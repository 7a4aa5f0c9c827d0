"""Constants of the cost models, each with its origin, so that an assumption is never taken for a measurement.

    data sheet   a maker's figure
    given        agreed on beforehand for arithmetic on paper
    fitted       to a published figure (calibration.py lists figures and residuals)
    measured     on this machine
    assumed      by us; the headline is reported with each of them at its lowest and its highest

Invariant: a cost reads a constant's value from the book, never from the constant, so that a sweep changes all of them.
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
    """The source of the figure, or the reason for the assumption."""
    sweep: tuple[float, float] = SWEEP
    """Factors, where it is assumed: narrower than the half and the double where those would be nonsense."""


@dataclass(frozen=True, slots=True)
class Book:
    """The constants of one run: their values, with those of a sweep multiplied."""

    factors: Mapping[str, float] = field(default_factory=dict)

    def __call__(self, constant: Constant) -> float:
        return constant.value * self.factors.get(constant.name, 1.0)

    def with_factor(self, constant: Constant, factor: float) -> Self:
        return type(self)({**self.factors, constant.name: factor})


AS_THEY_STAND: Final = Book()
