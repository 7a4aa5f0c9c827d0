"""What a judge of ours does before it looks at a model's text, in the process of that one call.

Invariants:
- no text is evaluated: Python itself refuses to run what was compiled here, but for the question's own words, terms
  made of numbers alone, and what a library writes for itself (a product of so many variables, a module that is
  imported); it tells of it even where the library that asked swallows the refusal;
- a call has so much time of the processor and then ends, whatever it is at; so what a text costs is the text's, and
  waiting for a processor is not.
"""

import signal
import sys
import types
from collections.abc import Iterable

# What sympy itself runs to know its own names, on every call of its parser.
_SYMPY = "from sympy import *"
# It multiplies monomials of n variables by a function that it writes out of n alone.
_WRITES_ITS_OWN = "/sympy/polys/monomials.py"
_OF_NUMBERS = frozenset({"Integer", "Float", "Add", "Mul", "Pow"})


class TextEvaluated(Exception):
    """A library tried to evaluate text in the judge."""


class Judging:
    """Lasts until the process ends: Python takes no hook out again."""

    def __init__(self, *, own_texts: Iterable[str], cpu_s: float) -> None:
        """`own_texts`: words of the question, which a library may evaluate."""
        self._own_texts = {_SYMPY, *own_texts}
        self._compiled: object = None
        self.has_refused = False
        signal.setitimer(signal.ITIMER_PROF, cpu_s)  # whose signal ends the process
        sys.addaudithook(self._hear)

    def refuse_if_evaluated(self) -> None:
        if self.has_refused:
            raise TextEvaluated("a library evaluates text in this judge, which is not done here")

    def _hear(self, event: str, arguments: tuple[object, ...]) -> None:
        if event == "compile":
            self._compiled = arguments[0]
        elif event == "exec" and not self._may_run(arguments[0]):
            self.has_refused = True
            raise TextEvaluated

    def _may_run(self, code: object) -> bool:
        if not isinstance(code, types.CodeType) or not code.co_filename.startswith("<string"):
            return True  # a module that is imported only now
        source = self._compiled.decode(errors="replace") if isinstance(self._compiled, bytes) else self._compiled
        is_flat = not any(isinstance(constant, types.CodeType) for constant in code.co_consts)
        is_harmless = source in self._own_texts or (is_flat and _OF_NUMBERS.issuperset(code.co_names))
        return is_harmless or _is_its_own(sys._getframe(2))


def _is_its_own(asks: types.FrameType) -> bool:
    """No text that is judged comes that far: a module sees nothing but itself until it has been imported."""
    if asks.f_code.co_filename.endswith(_WRITES_ITS_OWN):
        return True
    frame: types.FrameType | None = asks
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__spec__") is not None:
            return True
        frame = frame.f_back
    return False
