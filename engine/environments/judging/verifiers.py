"""Verifiers by name: each compares a model's text with the expected answer.

    exact        the texts are equal, apart from white space around them
    numeric      the last number in the text is the expected one, within a tolerance
    regex        the expected answer is a pattern, which the text matches somewhere
    math_verify  both are the same mathematics, in any notation
    unit_tests   the program in the text passes the tests

Invariants:
- whatever could hang on a model's text (patterns, mathematics, programs) runs in the sandbox; only programs are run;
- every text gets a verdict: one that breaks its verifier is wrong. `GraderError` is for faults of the data set or the
  platform.
"""

import math
import re
from collections.abc import Callable
from typing import Final

from engine.environments.judging.graders import SpoiltByText, TextJudge, inside_file
from engine.environments.judging.unit_tests import UnitTests
from engine.environments.params import ParamReader
from engine.environments.port import GraderError, Verdict
from engine.environments.sandbox.capacity import host_capacity

Verify = Callable[[str, str], Verdict]
"""(expected answer, model's text) -> verdict"""

_NUMBER: Final = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?(?:\s*/\s*\d+(?:\.\d+)?)?")
EXACT_BELOW: Final = 1e-9  # the default: accepts rounding errors, but no other whole number
_MAX_CHARACTERS: Final = 100_000  # at the end of a text, where answers are; the rest is not judged


def make_verifier(reader: ParamReader, *, timeout_s: float, default: str = "exact") -> Verify:
    name = reader.text("verifier") or default
    tolerance = reader.number("tolerance")
    after = reader.text("answer_after")
    end = reader.text("end_text")
    test_timeout_s = reader.number("test_timeout_s")
    verify = _make_verify(name, tolerance, timeout_s, test_timeout_s)
    return lambda due, text: verify(due, answer_part(text[-_MAX_CHARACTERS:], after=after, end=end))


def answer_part(text: str, *, after: str, end: str) -> str:
    """The text after the last marker; empty if the marker is missing."""
    if end:
        text = text.rstrip().removesuffix(end)
    if not after:
        return text
    return text.rpartition(after)[2] if after in text else ""


def _make_verify(name: str, tolerance: float, timeout_s: float, test_timeout_s: float) -> Verify:
    match name:
        case "exact":
            return exact
        case "numeric":
            return lambda due, text: numeric(due, text, tolerance)
        case "unit_tests":
            return UnitTests(timeout_s=min(test_timeout_s, timeout_s)).verdict
        case "regex":
            pattern = _make_judge("matches", "patterns.py", timeout_s)
            return lambda due, text: _judge(pattern, due, text, "found", "not found", "a pattern")
        case _:
            equal = _make_judge("is_equal", "mathematics.py", timeout_s, "math-verify")
            return lambda due, text: _judge(equal, due, text, "equal", f"not equal to {due}", "mathematics")


def _make_judge(function: str, file: str, timeout_s: float, *packages: str) -> TextJudge:
    num_at_once = host_capacity().computing
    return TextJudge(
        main=inside_file(file), function=function, timeout_s=timeout_s, packages=packages, size=num_at_once
    )


def _judge(judge: TextJudge, due: str, text: str, praise: str, blame: str, wanted: str) -> Verdict:
    try:
        right = judge.judge(due, text)
    except SpoiltByText as spoilt:
        return spoilt.verdict
    if right is None:
        raise GraderError(f"the answer of the data set is not {wanted}: {due!r:.200}", retryable=False)
    return _make_verdict(right is True, praise, blame)


def exact(due: str, text: str) -> Verdict:
    return _make_verdict(text.strip() == due.strip(), "right", f"not {due.strip()!r}")


def numeric(due: str, text: str, tolerance: float) -> Verdict:
    """The tolerance is absolute below 1 and relative above."""
    expected = last_number(due)
    if expected is None:
        raise GraderError(f"numeric: there is no number in the answer {due!r:.100}", retryable=False)
    number = last_number(text)
    if number is None:
        return _make_verdict(False, "", "no number in the answer")
    if tolerance <= EXACT_BELOW and _is_whole(expected[0]) and _is_whole(number[0]):
        right = number[0].lstrip("0") == expected[0].lstrip("0")  # as text: a float ignores the last of many digits
    else:
        right = abs(number[1] - expected[1]) <= tolerance * max(1.0, abs(expected[1]))
    return _make_verdict(right, f"right: {expected[0]}", f"got {number[0]}, should be {expected[0]}")


def last_number(text: str) -> tuple[str, float] | None:
    """As written, without redundant plus signs and commas, and as a float."""
    written = [re.sub(r"[,\s+]", "", match.group()) for match in _NUMBER.finditer(text)]
    for last in reversed(written):
        above, _, below = last.partition("/")
        try:
            value = float(above) / float(below or 1)
        except ZeroDivisionError:
            continue
        if math.isfinite(value):
            return last, value
    return None


def _is_whole(written: str) -> bool:
    return written.removeprefix("-").isdigit()


def _make_verdict(right: bool, praise: str, blame: str) -> Verdict:
    return Verdict(reward=float(right), parts={"right": float(right)}, trusted=True, remark=praise if right else blame)
