"""The calculator tool: its own parser accepts numbers, six operators and brackets, and evaluates nothing else.

    value(sum) = product (("+" | "-") product)*      power binds tightest and to the right
    product    = signed (("*" | "/" | "%") signed)*
    signed     = ("-" | "+") signed | power
    power      = atom (("^" | "**") signed)?
    atom       = number | "(" sum ")"

Invariant: the text's length bounds work and memory: results are exact fractions of at most `MAX_DIGITS` digits.
"""

import re
from fractions import Fraction
from typing import Final

MAX_CHARACTERS: Final = 500
MAX_DIGITS: Final = 300
MAX_EXPONENT: Final = 1_000
MAX_DEPTH: Final = 50
_TOKEN: Final = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+|\*\*|[-+*/%^()])")


class NotArithmetic(ValueError):
    """The text is not arithmetic that the calculator can evaluate."""


def calculate(text: str) -> str:
    if len(text) > MAX_CHARACTERS:
        raise NotArithmetic(f"longer than {MAX_CHARACTERS} characters")
    value = _Parser(_tokenize(text)).whole()
    if value.denominator == 1:
        return str(value.numerator)
    try:
        return f"{float(value):.12g}"
    except OverflowError as error:
        raise NotArithmetic("the result is too large") from error


def _tokenize(text: str) -> list[str]:
    tokens, at, end = list[str](), 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            raise NotArithmetic(f"cannot read {text[at:end].strip()[:20]!r}; numbers, + - * / % ^ and brackets")
        tokens.append(match.group(1))
        at = match.end()
    return tokens


class _Parser:
    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    def whole(self) -> Fraction:
        value = self._sum()
        if self._next() is not None:
            raise NotArithmetic(f"did not expect {self._next()!r}")
        return value

    def _next(self) -> str | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _take(self, *wanted: str) -> str | None:
        token = self._next()
        if token is None or token not in wanted:
            return None
        self._at += 1
        return token

    def _sum(self) -> Fraction:
        value = self._product()
        while sign := self._take("+", "-"):
            other = self._product()
            value = _check_size(value + other if sign == "+" else value - other)
        return value

    def _product(self) -> Fraction:
        value = self._signed()
        while sign := self._take("*", "/", "%"):
            other = self._signed()
            if sign != "*" and other == 0:
                raise NotArithmetic("division by zero")
            value = _check_size(value * other if sign == "*" else value / other if sign == "/" else value % other)
        return value

    def _signed(self) -> Fraction:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise NotArithmetic(f"nested deeper than {MAX_DEPTH}")
        sign = self._take("-", "+")
        value = self._signed() if sign else self._power()
        self._depth -= 1
        return -value if sign == "-" else value

    def _power(self) -> Fraction:
        base = self._atom()
        if not self._take("^", "**"):
            return base
        exponent = self._signed()
        if exponent.denominator != 1 or abs(exponent) > MAX_EXPONENT:
            raise NotArithmetic(f"an exponent is a whole number up to {MAX_EXPONENT}")
        if base == 0 and exponent < 0:
            raise NotArithmetic("division by zero")
        size = max(len(str(abs(base.numerator))), len(str(base.denominator)))
        if (size - 1) * abs(exponent) > MAX_DIGITS:
            raise NotArithmetic("the result is too large")
        return _check_size(base ** int(exponent))

    def _atom(self) -> Fraction:
        if self._take("("):
            value = self._sum()
            if not self._take(")"):
                raise NotArithmetic("a bracket is not closed")
            return value
        token = self._next()
        if token is None or not (token[0].isdigit() or token[0] == "."):
            raise NotArithmetic("a number is missing" if token is None else f"did not expect {token!r}")
        self._at += 1
        return Fraction(token)


def _check_size(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_DIGITS * 10 // 3:
        raise NotArithmetic("the result is too large")
    return value
