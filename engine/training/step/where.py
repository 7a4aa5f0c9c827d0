"""Adds the micro-batch's size to errors as a note, so that a reader sees what was too large.

MemoryError
in a micro-batch of 9,120 tokens, the longest of its 3 sequences 4,800
"""

from collections.abc import Iterator
from contextlib import contextmanager

from engine.training.step.micro_batch import MicroBatch


@contextmanager
def annotate_errors(where: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        error.add_note(where)
        raise


def size_of(batch: MicroBatch) -> str:
    rectangles = batch.tokens.rectangles
    number, longest = sum(len(each.members) for each in rectangles), max(each.width for each in rectangles)
    which = f"one sequence of {longest:,}" if number == 1 else f"{number} sequences, the longest {longest:,}"
    return f"in a micro-batch of {len(batch.ids):,} tokens, {which}"
