"""Patterns of a data set, searched in what a model said; some patterns take forever on some texts."""

import re


def matches(pattern: str, said: str) -> bool:
    return re.search(pattern, said, re.DOTALL) is not None
