"""Equality of two mathematical answers, however they are written; some take forever to work out."""

import logging

from judging import Judging  # type: ignore[import-not-found]
from math_verify import parse, verify

logging.disable(logging.WARNING)  # it warns that its own clock is off: the deadline is kept from outside


def is_equal(due: str, said: str, cpu_s: float) -> bool | None:
    """None: it reads no answer in what is due."""
    judging = Judging(own_texts=(), cpu_s=cpu_s)
    gold = parse(due, parsing_timeout=None) or parse(f"${due}$", parsing_timeout=None)
    if not gold:
        return None
    equal = bool(verify(gold, parse(said, parsing_timeout=None), timeout_seconds=None))
    judging.refuse_if_evaluated()
    return equal


def _warm_up() -> None:
    gold = parse("$1 + x^2 + \\frac{0}{3}$", parsing_timeout=None)
    verify(gold, parse("$x^2 + 1$", parsing_timeout=None), timeout_seconds=None)
    for said in ("1/2", "$50\\%$", "50%"):
        verify(parse("$0.5$", parsing_timeout=None), parse(said, parsing_timeout=None), timeout_seconds=None)


_warm_up()  # loads the rest of its grammar before the first call
