"""Equality of two mathematical answers, however they are written; some take forever to work out."""

import logging

from math_verify import parse, verify

logging.disable(logging.WARNING)  # it warns that its own clock is off: the deadline is kept from outside


def is_equal(due: str, said: str) -> bool:
    gold = parse(due, parsing_timeout=None) or parse(f"${due}$", parsing_timeout=None)
    if not gold:
        raise ValueError(f"math-verify reads no answer in {due!r}")
    return bool(verify(gold, parse(said, parsing_timeout=None), timeout_seconds=None))


is_equal("$x^2 + 1$", "$1 + x^2 + \\frac{0}{3}$")  # loads the rest of its grammar before the first call
