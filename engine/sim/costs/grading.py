"""Grading: a rule checks the answer outside the replica: it delays its own trajectory and nothing else."""

from typing import Final

from engine.sim.costs.constants import AS_THEY_STAND, Book, Constant

GRADING_S: Final = Constant(
    name="grading", value=0.05, unit="s", origin="assumed", source="a rule for mathematics, in a process that is warm"
)


def grading_s(book: Book = AS_THEY_STAND) -> float:
    return book(GRADING_S)
