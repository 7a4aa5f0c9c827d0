"""Parses mathematics without evaluating code: a model's text becomes numbers, symbols and functions of sympy.

    value   a | b   a ^ b   a & b   a << b  a >> b   a + b  a - b   a * b  a / b  a // b  a % b     each binds tighter
    signed  -a  +a  ~a                  power  a ** b                  atom  3   2.5   x   sin(x)   (a)   a!

It replaces sympy's `parse_expr`, which passes the text to Python's `eval`. Text that both accept has the same value, as
the same operators are applied to the same numbers.

Invariants:
- a name is a symbol or one of the functions here; none of them solves the question itself (`Integral`, `expand`,
  `solve`);
- where the numbers used are counted (`counts`), an expression that hides one from the count (a constant, `x/x`, `49e1`,
  a comment) has the value nan.
"""

import builtins
import keyword
import operator
import re
from collections.abc import Callable
from typing import Any

import sympy  # type: ignore[import-untyped]

_TOKEN = re.compile(
    r"(?:\s|#[^\n]*)*(?:(?P<number>(?:\d+(?:_\d+)*\.?(?:\d+(?:_\d+)*)?|\.\d+(?:_\d+)*)(?:[eE][-+]?\d+)?)(?!\w)"
    r"|(?P<name>[^\W\d]\w*)|(?P<sign>\*\*|//|<<|>>|[-+*/%|^&~!(),]))"
)
_END = re.compile(r"(?:\s|#[^\n]*)*\Z")
_COUNTED = re.compile(r"\d+\.?\d*|\.\d+")
_LEVELS = (("|",), ("^",), ("&",), ("<<", ">>"), ("+", "-"), ("*", "/", "//", "%"))
_BINARY: dict[str, Callable[[Any, Any], object]] = {
    "|": operator.or_, "^": operator.xor, "&": operator.and_, "<<": operator.lshift, ">>": operator.rshift,
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv,
    "%": operator.mod, "**": operator.pow,
}  # fmt: skip
_UNARY: dict[str, Callable[[Any], object]] = {"-": operator.neg, "+": operator.pos, "~": operator.invert}
_FUNCTIONS = {
    **{name: getattr(sympy, name) for name in (
        "sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan", "acot", "asec", "acsc", "atan2",
        "sinh", "cosh", "tanh", "coth", "sech", "csch", "asinh", "acosh", "atanh", "acoth", "asech", "acsch",
        "exp", "log", "ln", "sqrt", "cbrt", "root", "Abs", "sign", "floor", "ceiling", "factorial", "Rational",
        "erf", "erfc", "erfi", "Si", "Ci", "Ei", "li", "fresnels", "fresnelc", "gamma", "lowergamma", "uppergamma",
        "Max", "Min",
    )},
    "abs": abs, "max": sympy.Max, "min": sympy.Min,
}  # fmt: skip
_CONSTANTS = {
    **{name: getattr(sympy, name) for name in ("pi", "E", "I", "oo", "zoo", "nan", "GoldenRatio", "EulerGamma")},
    "True": True, "False": False,
}  # fmt: skip


class NotMathematics(ValueError):
    """The text is not an expression of the expected kind."""


def expression(
    text: str, *, symbols: dict[str, object] | None = None, counts: bool = False, is_own: bool = False
) -> object:
    """`symbols`: values of names. `is_own`: the text is the question's own and may use all functions of sympy."""
    reader = _Reader(_tokenize(text.strip()), symbols or {}, is_own=is_own)
    value = reader.whole()
    reader.hides |= any(letter.isdigit() for remark in re.findall("#[^\n]*", text) for letter in remark)
    if not counts or not reader.hides:
        return value
    float(value)  # type: ignore[arg-type]  # raises without a numeric value, as the caller would otherwise
    return sympy.nan


def _tokenize(text: str) -> list[tuple[str, str]]:
    tokens, at, depth = list[tuple[str, str]](), 0, 0
    while not _END.match(text, at):
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise NotMathematics(f"cannot read {text[at : at + 20]!r}")
        if depth == 0 and "\n" in match[0]:
            raise NotMathematics("more than one line")
        depth += {"(": 1, ")": -1}.get(match[match.lastgroup], 0)
        tokens.append((match.lastgroup, match[match.lastgroup]))
        at = match.end()
    return tokens


class _Reader:
    def __init__(self, tokens: list[tuple[str, str]], symbols: dict[str, object], *, is_own: bool) -> None:
        self._tokens, self._symbols, self._is_own = tokens, symbols, is_own
        self._at = 0
        self.hides = False
        """True if the text has numbers that are not plain digits."""

    def whole(self) -> object:
        value = self._binary(0)
        if self._at < len(self._tokens):
            raise NotMathematics(f"did not expect {self._tokens[self._at][1]!r}")
        return value

    def _sign(self, *wanted: str) -> str:
        if self._at < len(self._tokens):
            kind, text = self._tokens[self._at]
            if kind == "sign" and text in wanted:
                self._at += 1
                return text
        return ""

    def _binary(self, level: int) -> object:
        if level == len(_LEVELS):
            return self._signed()
        value = self._binary(level + 1)
        while sign := self._sign(*_LEVELS[level]):
            value = _BINARY[sign](value, self._binary(level + 1))
        return value

    def _signed(self) -> object:
        sign = self._sign(*_UNARY)
        return _UNARY[sign](self._signed()) if sign else self._power()

    def _power(self) -> object:
        value = self._atom()
        if self._sign("!"):
            value = sympy.factorial(value)
        return _BINARY["**"](value, self._signed()) if self._sign("**") else value

    def _atom(self) -> object:
        if self._sign("("):
            value = self._binary(0)
            if not self._sign(")"):
                raise NotMathematics("a bracket is not closed")
            return value
        if self._at == len(self._tokens):
            raise NotMathematics("a number is missing")
        kind, text = self._tokens[self._at]
        self._at += 1
        if kind == "number":
            return self._number(text)
        if kind == "name":
            return self._call(text) if self._sign("(") else self._named(text)
        raise NotMathematics(f"did not expect {text!r}")

    def _number(self, text: str) -> object:
        self.hides |= _COUNTED.fullmatch(text) is None
        if "." in text or "e" in text.lower():
            return sympy.Float(text)
        if len(text) > 1 and text.startswith("0") and text.strip("0_"):
            raise NotMathematics(f"a whole number does not begin with 0, as {text!r} does")
        return sympy.Integer(int(text))

    def _named(self, name: str) -> object:
        if name in self._symbols:
            return self._symbols[name]
        self.hides = True
        if name in _CONSTANTS:
            return _CONSTANTS[name]
        if keyword.iskeyword(name) or hasattr(builtins, name):
            raise NotMathematics(f"did not expect {name!r}")
        if hasattr(sympy, name) and not self._is_own:
            raise NotMathematics(f"did not expect {name!r}")
        return getattr(sympy, name, None) or sympy.Symbol(name)

    def _call(self, name: str) -> object:
        function = _FUNCTIONS.get(name) or (getattr(sympy, name, None) if self._is_own else None)
        if function is None or name in self._symbols:
            raise NotMathematics(f"there is no function {name!r} here")
        arguments = [self._binary(0)]
        while self._sign(","):
            arguments.append(self._binary(0))
        if not self._sign(")"):
            raise NotMathematics("a bracket is not closed")
        return function(*arguments)
