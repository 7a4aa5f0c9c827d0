"""Equality of two mathematical answers in any notation; some comparisons never end."""

import logging

from judging import Judging  # type: ignore[import-not-found]
from math_verify import parse, verify

logging.disable(logging.WARNING)  # the library warns that its own timeout is off: the caller enforces the deadline


def is_equal(due: str, text: str, cpu_s: float) -> bool | None:
    """None: the expected answer is not mathematics."""
    judging = Judging(own_texts=(), cpu_s=cpu_s)
    gold = parse(due, parsing_timeout=None) or parse(f"${due}$", parsing_timeout=None)
    if not gold:
        return None
    equal = bool(verify(gold, parse(text, parsing_timeout=None), timeout_seconds=None))
    judging.refuse_if_evaluated()
    return equal


def _warm_up() -> None:
    gold = parse("$1 + x^2 + \\frac{0}{3}$", parsing_timeout=None)
    verify(gold, parse("$x^2 + 1$", parsing_timeout=None), timeout_seconds=None)
    for text in ("1/2", "$50\\%$", "50%"):
        verify(parse("$0.5$", parsing_timeout=None), parse(text, parsing_timeout=None), timeout_seconds=None)


_warm_up()  # loads the rest of the library's grammar before the first call
