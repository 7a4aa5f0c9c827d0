"""Patterns of a data set, searched in a model's text; some patterns take forever on some texts."""

import re


def matches(pattern: str, said: str) -> bool:
    return re.search(pattern, said, re.DOTALL) is not None
