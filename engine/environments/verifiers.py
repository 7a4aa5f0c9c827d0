"""Verifiers by name: each says whether a model's text is the answer that is due.

    exact        the same text, but for white space around it
    numeric      the last number said is the one due, within a tolerance
    regex        the answer of the data set is a pattern that is found in what was said
    math_verify  the same mathematics, however it is written
    unit_tests   the program said passes the tests

Invariants:
- whatever could hang on a model's text (patterns, mathematics, programs) runs in the sandbox; only programs are run;
- anything said gets a verdict: a text that its verifier chokes on is wrong. `GraderError` is for the data set's faults,
  and for ours.
"""

import math
import re
from collections.abc import Callable
from typing import Final

from engine.environments.graders import SpoiltByText, TextJudge, inside_file
from engine.environments.params import ParamReader
from engine.environments.port import GraderError, Verdict
from engine.environments.sandbox.capacity import host_capacity
from engine.environments.unit_tests import UnitTests

Verify = Callable[[str, str], Verdict]
"""(the answer due, what was said) -> the verdict"""

_NUMBER: Final = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?(?:\s*/\s*\d+(?:\.\d+)?)?")
EXACT_BELOW: Final = 1e-9  # the default: rounding errors are forgiven, another whole number is not
_MAX_SAID: Final = 100_000  # characters of an answer that are looked at: the end, where answers are


def make_verifier(reader: ParamReader, *, timeout_s: float, default: str = "exact") -> Verify:
    name = reader.text("verifier") or default
    tolerance = reader.number("tolerance")
    after = reader.text("answer_after")
    end = reader.text("end_text")
    test_timeout_s = reader.number("test_timeout_s")
    verify = _made(name, tolerance, timeout_s, test_timeout_s)
    return lambda due, said: verify(due, answer_part(said[-_MAX_SAID:], after=after, end=end))


def answer_part(said: str, *, after: str, end: str) -> str:
    """The text after the last marker; empty where there should be one and is not."""
    if end:
        said = said.rstrip().removesuffix(end)
    if not after:
        return said
    return said.rpartition(after)[2] if after in said else ""


def _made(name: str, tolerance: float, timeout_s: float, test_timeout_s: float) -> Verify:
    match name:
        case "exact":
            return exact
        case "numeric":
            return lambda due, said: numeric(due, said, tolerance)
        case "unit_tests":
            return UnitTests(timeout_s=min(test_timeout_s, timeout_s)).verdict
        case "regex":
            pattern = _verifying("matches", "patterns.py", timeout_s)
            return lambda due, said: _judged(pattern, due, said, "found", "not found", "a pattern")
        case _:
            equal = _verifying("is_equal", "mathematics.py", timeout_s, "math-verify")
            return lambda due, said: _judged(equal, due, said, "equal", f"not equal to {due}", "mathematics")


def _verifying(function: str, file: str, timeout_s: float, *packages: str) -> TextJudge:
    num_at_once = host_capacity().computing
    return TextJudge(
        main=inside_file(file), function=function, timeout_s=timeout_s, packages=packages, size=num_at_once
    )


def _judged(judge: TextJudge, due: str, said: str, praise: str, blame: str, wanted: str) -> Verdict:
    try:
        right = judge.judge(due, said)
    except SpoiltByText as spoilt:
        return spoilt.verdict
    if right is None:
        raise GraderError(f"the answer of the data set is not {wanted}: {due!r:.200}", retryable=False)
    return _plain(right is True, praise, blame)


def exact(due: str, said: str) -> Verdict:
    return _plain(said.strip() == due.strip(), "right", f"not {due.strip()!r}")


def numeric(due: str, said: str, tolerance: float) -> Verdict:
    """The tolerance is absolute below 1 and relative above."""
    wanted = last_number(due)
    if wanted is None:
        raise GraderError(f"numeric: there is no number in the answer {due!r:.100}", retryable=False)
    found = last_number(said)
    if found is None:
        return _plain(False, "", "no number was said")
    if tolerance <= EXACT_BELOW and _is_whole(wanted[0]) and _is_whole(found[0]):
        right = found[0].lstrip("0") == wanted[0].lstrip("0")  # as text: a float would forgive the last of many digits
    else:
        right = abs(found[1] - wanted[1]) <= tolerance * max(1.0, abs(wanted[1]))
    return _plain(right, f"right: {wanted[0]}", f"said {found[0]}, should be {wanted[0]}")


def last_number(text: str) -> tuple[str, float] | None:
    """As it is written, without plus signs and commas that mean nothing, and as a float."""
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


def _plain(right: bool, praise: str, blame: str) -> Verdict:
    return Verdict(reward=float(right), parts={"right": float(right)}, trusted=True, remark=praise if right else blame)
