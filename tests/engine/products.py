"""A product of parameters: `make test` runs rows that cover every pair of values, `make soak` runs all.

Those rows find bugs of one value or of two together; each row is expensive.
"""

from collections.abc import Iterable, Sequence
from itertools import combinations, product
from typing import Any

import pytest


def in_pairs(*values: Sequence[Any]) -> list[Any]:
    """For `pytest.mark.parametrize`: the rows of the product; rows without a new pair are marked as soak."""
    rows = list(product(*(range(len(each)) for each in values)))
    missing, chosen = set[object]().union(*map(_pairs, rows)), []
    while missing:
        chosen.append(max(rows, key=lambda row: len(_pairs(row) & missing)))
        missing -= _pairs(chosen[-1])
    return [pytest.param(*map(_value, values, row), marks=() if row in chosen else (pytest.mark.soak,)) for row in rows]


def _value(values: Sequence[Any], at: int) -> Any:
    return values[at]


def _pairs(row: Iterable[int]) -> set[object]:
    return set(combinations(enumerate(row), 2))
