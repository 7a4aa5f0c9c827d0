"""Mathematics in the judge, which evaluates no text: it agrees with math-verify itself."""

import random
from typing import Final

import pytest
from math_verify import parse, verify

from engine.environments.judging.graders import SandboxedGrader, inside_file
from tests.engine.environments.sandboxed import sandbox

__all__ = ["sandbox"]
pytestmark = [pytest.mark.sandbox, pytest.mark.usefixtures("sandbox")]

FORMS: Final = (
    "{n}", "${n}$", "{n}.0", "${n}/{d}$", "{n}/{d}", r"$\frac{{{n}}}{{{d}}}$", r"\boxed{{{n}}}", "{n}%", r"${n}\%$",
    "-{n}", "$-{n}$", r"$\sqrt{{{n}}}$", r"${n}\pi$", "$x = {n}$", "$x^{d} + {n}$", "${n} + x^{d}$", r"$({n}, {d})$",
    r"$\{{{n}, {d}\}}$", r"$[{n}, {d}]$", "$(x+{n})(x-{d})$", r"$x^2 + ({n}-{d})x - {n} \cdot {d}$", "({n} + {d}) * 2",
    "{n}^{d}", "so it is {n} or {d}.", "no idea", r"${n} \times 10^{{{d}}}$", r"$\sin({n})$", r"$\log_{{{d}}} {n}$",
    "${n} < x$", r"$\begin{{pmatrix}}{n} & {d}\\0 & 1\end{{pmatrix}}$", "{n},{d}00", "$e^{{{n}}}$",
)  # fmt: skip
"""Notations. Two of them, with equal or different numbers, make an expected answer and a model's answer."""


def disagreed(num: int) -> list[tuple[str, str, bool | None, object]]:
    rng = random.Random("mathematics")
    imports = {"judging.py": inside_file("judging.py")}
    judge = SandboxedGrader(
        main=inside_file("mathematics.py"), imports=imports, timeout_s=120.0, packages=("math-verify",), forks=True
    )
    found = []
    for at in range(num):
        n, d = rng.randint(1, 9), rng.randint(1, 9)
        due = rng.choice(FORMS).format(n=n, d=d)
        said = due if at % 4 == 0 else rng.choice(FORMS).format(n=n + (at % 4 == 3), d=d)
        gold = parse(due) or parse(f"${due}$")
        theirs = bool(verify(gold, parse(said))) if gold else None
        ours = judge.call("is_equal", due, said, 60.0)
        if ours != theirs:
            found.append((due, said, theirs, ours))
    return found


@pytest.mark.long
def test_mathematics_compares_as_in_the_library() -> None:
    assert disagreed(60) == []


@pytest.mark.soak
def test_two_thousand_answers_compare_as_in_the_library() -> None:
    assert disagreed(2_000) == []
