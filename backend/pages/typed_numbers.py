"""Parsing of typed numbers: with groups of three digits, a typographic minus sign, or a decimal comma.

Invariant: an ambiguous number is refused, with both readings in the error.
"""

import re
from typing import Final

_SPACES: Final = " _\N{NO-BREAK SPACE}\N{THIN SPACE}\N{NARROW NO-BREAK SPACE}"
_BY_SPACES: Final = re.compile(rf"[+-]?\d{{1,3}}(?:[{_SPACES}]\d{{3}})+(?:\.\d*)?")
_BY_COMMAS: Final = re.compile(r"[+-]?[1-9]\d{0,2}(?:,\d{3})+")
_BY_POINTS: Final = re.compile(r"[+-]?[1-9]\d{0,2}(?:\.\d{3}){2,}")
_COMMAS: Final = re.compile(r"[+-]?\d*(?:,\d+)+")
_ONE_POINT: Final = re.compile(r"[+-]?[1-9]\d{0,2}\.\d{3}")


class TwoReadings(ValueError):
    """The typed number has two readings."""

    def __init__(self, text: str, one: str, other: str) -> None:
        super().__init__(f"{text} is ambiguous: enter {one} or {other}.")


def plain_number(text: str, *, whole: bool) -> str:
    """The number without its group separators. Other text is unchanged, for the model to refuse."""
    text = text.strip().replace("\N{MINUS SIGN}", "-")
    if _BY_SPACES.fullmatch(text):
        return re.sub(f"[{_SPACES}]", "", text)
    if _BY_POINTS.fullmatch(text):
        return text.replace(".", "")
    if _BY_COMMAS.fullmatch(text) and (whole or text.count(",") > 1):
        return text.replace(",", "")
    if _COMMAS.fullmatch(text):
        if text.count(",") > 1:
            return text
        raise TwoReadings(text, _short(text.replace(",", ".")), _short(text.replace(",", "")))
    if whole and _ONE_POINT.fullmatch(text):
        raise TwoReadings(text, _short(text), _short(text.replace(".", "")))
    return text


def _short(number: str) -> str:
    """Strips redundant zeros: 005 is 5, 1.50 is 1.5."""
    sign, digits = ("-", number[1:]) if number.startswith("-") else ("", number.removeprefix("+"))
    before, point, after = digits.partition(".")
    after = after.rstrip("0")
    return sign + (before.lstrip("0") or "0") + (point + after if after else "")
