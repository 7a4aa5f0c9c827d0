"""Protects a judge before it reads a model's text, in the process of that one call.

Invariants:
- no text is evaluated: an audit hook refuses to run code that was compiled here, except for the question's own texts,
  terms of numbers alone, and code that a library generates for itself (a product of n variables, an imported module);
  the refusal is recorded even if the library swallows the exception;
- a call ends at its limit of processor time: the cost of a text counts against the text, waits for a processor do not.
"""

import signal
import sys
import types
from collections.abc import Iterable

# sympy runs this itself on every call of its parser.
_SYMPY = "from sympy import *"
# sympy multiplies monomials of n variables by a function that it generates from n alone.
_WRITES_ITS_OWN = "/sympy/polys/monomials.py"
_OF_NUMBERS = frozenset({"Integer", "Float", "Add", "Mul", "Pow"})


class TextEvaluated(Exception):
    """A library tried to evaluate text in the judge."""


class Judging:
    """Lasts until the process ends: Python cannot remove an audit hook."""

    def __init__(self, *, own_texts: Iterable[str], cpu_s: float) -> None:
        """`own_texts`: texts of the question, which a library may evaluate."""
        self._own_texts = {_SYMPY, *own_texts}
        self._compiled: object = None
        self.has_refused = False
        signal.setitimer(signal.ITIMER_PROF, cpu_s)  # its signal ends the process
        sys.addaudithook(self._audit)

    def refuse_if_evaluated(self) -> None:
        if self.has_refused:
            raise TextEvaluated("a library tried to evaluate text in this judge, which is forbidden")

    def _audit(self, event: str, arguments: tuple[object, ...]) -> None:
        if event == "compile":
            self._compiled = arguments[0]
        elif event == "exec" and not self._may_run(arguments[0]):
            self.has_refused = True
            raise TextEvaluated

    def _may_run(self, code: object) -> bool:
        if not isinstance(code, types.CodeType) or not code.co_filename.startswith("<string"):
            return True  # a module that is being imported
        source = self._compiled.decode(errors="replace") if isinstance(self._compiled, bytes) else self._compiled
        is_flat = not any(isinstance(constant, types.CodeType) for constant in code.co_consts)
        is_harmless = source in self._own_texts or (is_flat and _OF_NUMBERS.issuperset(code.co_names))
        return is_harmless or _is_its_own(sys._getframe(2))


def _is_its_own(caller: types.FrameType) -> bool:
    """True for code of a library's own: no judged text reaches a module while it is being imported."""
    if caller.f_code.co_filename.endswith(_WRITES_ITS_OWN):
        return True
    frame: types.FrameType | None = caller
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__spec__") is not None:
            return True
        frame = frame.f_back
    return False
