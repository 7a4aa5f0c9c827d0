"""Pickles records as the values of their fields only.

For a frozen dataclass with slots Python looks up the field names for every object, on both sides. A sample travels from
replica to trainer as some forty objects; this module halves the time.

Invariant: the unpickled record equals Python's own result: nothing is computed or validated again.
"""

import copyreg
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import Any


def pickled_by_values(*kinds: type) -> None:
    """Registers dataclasses with slots and at least two fields; with a single field nothing is gained."""
    for kind in kinds:
        copyreg.pickle(kind, _reducer(kind))


def _reducer(kind: type) -> Callable[[object], tuple[Any, ...]]:
    values_of = attrgetter(*(each.name for each in fields(kind)))

    def reduce(record: object) -> tuple[Any, ...]:
        return made_of_values, (kind, values_of(record))

    return reduce


def made_of_values(kind: type, values: tuple[object, ...]) -> object:
    record: object = object.__new__(kind)
    for set_field, value in zip(_setters(kind), values, strict=True):
        set_field(record, value)
    return record


@cache
def _setters(kind: type) -> tuple[Callable[[object, object], None], ...]:
    return tuple(kind.__dict__[each.name].__set__ for each in fields(kind))
