"""Patterns of a data set, searched in a model's text; some patterns take forever on some texts."""

import re

from judging import Judging  # type: ignore[import-not-found]


def matches(pattern: str, said: str, cpu_s: float) -> bool | None:
    """None: it is no pattern."""
    Judging(own_texts=(), cpu_s=cpu_s)
    try:
        found = re.compile(pattern, re.DOTALL)
    except (re.error, RecursionError, OverflowError):
        return None
    return found.search(said) is not None
