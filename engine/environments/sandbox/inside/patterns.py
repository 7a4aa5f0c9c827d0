"""Searches a data set's pattern in a model's text; with some patterns and texts the search never ends."""

import re

from judging import Judging  # type: ignore[import-not-found]


def matches(pattern: str, text: str, cpu_s: float) -> bool | None:
    """None: the pattern is invalid."""
    Judging(own_texts=(), cpu_s=cpu_s)
    try:
        compiled = re.compile(pattern, re.DOTALL)
    except (re.error, RecursionError, OverflowError):
        return None
    return compiled.search(text) is not None
