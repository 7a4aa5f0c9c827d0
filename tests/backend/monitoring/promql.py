"""The part of PromQL used by the rules and the board, evaluated over scrapes; anything else is refused.

As in Prometheus, except that `rate` and `increase` do not extrapolate to the edges of a range. If promtool is
installed, `test_rules` compares the results.

    or < and, unless < == != > < >= <= < + - < * /    on (…) for each; sum, max, min, count, by (…)
    time, rate, increase, absent, histogram_quantile; selectors with = != =~ !~, and ranges
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

Labels = frozenset[tuple[str, str]]
Samples = Mapping[str, Mapping[Labels, float]]
"""By the name of their metric."""
Vector = dict[Labels, float]
Value = float | Vector
History = Sequence[tuple[float, Samples]]
"""Scrapes by the time of each, oldest first."""

LOOKBACK_S: Final = 300.0
_TOKEN: Final = re.compile(
    r'\s*(?:(?P<number>\d+(?:\.\d+)?(?![\w.]))|(?P<name>[A-Za-z_:][\w:]*)|(?P<text>"(?:[^"\\]|\\.)*")'
    r"|(?P<range>\[\d+[smh]\])|(?P<sign>==|!=|>=|<=|=~|!~|[-+*/()<>{},=]))"
)
_UNITS: Final = {"s": 1, "m": 60, "h": 3_600}
_COMPARE: Final[dict[str, Callable[[float, float], bool]]] = {
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b, ">": lambda a, b: a > b,
    "<": lambda a, b: a < b, ">=": lambda a, b: a >= b, "<=": lambda a, b: a <= b,
}  # fmt: skip
_ARITHMETIC: Final[dict[str, Callable[[float, float], float]]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b,
    "/": lambda a, b: a / b if b else math.copysign(math.inf, a) if a else math.nan,
}  # fmt: skip
_LEVELS: Final = (("or",), ("and", "unless"), tuple(_COMPARE), ("+", "-"), ("*", "/"))
_GATHER: Final[dict[str, Callable[[list[float]], float]]] = {
    "sum": math.fsum, "max": max, "min": min, "count": lambda values: float(len(values)),
}  # fmt: skip


def value_of(expression: str, history: History, at: float) -> Value:
    parser = _Parser(expression, history, at)
    value = parser.binary(0)
    assert parser.is_done, f"{expression}: more than one expression, from {parser.next!r} on"
    return value


def names_in(expression: str) -> set[str]:
    """The metrics in a query."""
    parser = _Parser(expression, [], 0.0)
    parser.binary(0)
    return parser.names


@dataclass(slots=True)
class _Parser:
    """Evaluates an expression while parsing it."""

    text: str
    history: History
    at: float
    names: set[str] = field(default_factory=set)
    _tokens: list[str] = field(default_factory=list)
    _place: int = 0

    def __post_init__(self) -> None:
        end = 0
        while end < len(self.text.rstrip()):
            match = _TOKEN.match(self.text, end)
            assert match, f"not of our part of PromQL: {self.text[end:]!r}"
            self._tokens.append(match[0].strip())
            end = match.end()

    @property
    def next(self) -> str:
        return self._tokens[self._place] if not self.is_done else ""

    @property
    def is_done(self) -> bool:
        return self._place == len(self._tokens)

    def take(self, wanted: str = "") -> str:
        token = self.next
        assert token and wanted in ("", token), f"{self.text}: wanted {wanted!r}, got {token!r}"
        self._place += 1
        return token

    def binary(self, level: int) -> Value:
        if level == len(_LEVELS):
            return self.single()
        left = self.binary(level + 1)
        while self.next in _LEVELS[level]:
            operator = self.take()
            on = self.labels() if self.next == "on" and self.take() else None
            left = _joined(operator, left, self.binary(level + 1), on)
        return left

    def single(self) -> Value:
        if self.next == "(":
            self.take()
            inner = self.binary(0)
            self.take(")")
            return inner
        token = self.take()
        if token[0].isdigit():
            return float(token)
        if token in _GATHER:
            return self.gathered(_GATHER[token])
        if self.next == "(":
            return self.called(token)
        return self.selected(token, self.newest())

    def called(self, function: str) -> Value:
        self.take("(")
        if function == "time":
            value: Value = self.at
        elif function in ("rate", "increase"):
            value = self.increase(is_rate=function == "rate")
        elif function == "absent":
            found = self.binary(0)
            value = {} if found else {frozenset(): 1.0}
        elif function == "histogram_quantile":
            quantile = self.binary(0)
            self.take(",")
            buckets = self.binary(0)
            assert isinstance(quantile, float) and isinstance(buckets, dict)
            value = _quantiles(quantile, buckets)
        else:
            raise AssertionError(f"not of our part of PromQL: {function}()")
        self.take(")")
        return value

    def gathered(self, gather: Callable[[list[float]], float]) -> Vector:
        by = self.labels() if self.next == "by" and self.take() else frozenset[str]()
        self.take("(")
        inner = self.binary(0)
        self.take(")")
        groups: dict[Labels, list[float]] = defaultdict(list)
        assert isinstance(inner, dict)
        for labels, value in inner.items():
            groups[_only(labels, by)].append(value)
        return {labels: gather(values) for labels, values in groups.items()}

    def labels(self) -> frozenset[str]:
        self.take("(")
        matchers = set()
        while self.next != ")":
            matchers.add(self.take())
            if self.next == ",":
                self.take()
        self.take(")")
        return frozenset(matchers)

    # ── series ────────────────────────────────────────────────────────────────────────────────────────────────────

    def newest(self) -> Samples:
        """A series missing from the newest scrape is gone."""
        seen = [samples for at, samples in self.history if self.at - LOOKBACK_S < at <= self.at]
        return seen[-1] if seen else {}

    def increase(self, *, is_rate: bool) -> Vector:
        name = self.take()
        place = self._place
        self.selected(name, {})
        unit = re.fullmatch(r"\[(\d+)([smh])\]", self.take())
        assert unit, f"{self.text}: a range is required here"
        span_s, after = int(unit[1]) * _UNITS[unit[2]], self._place
        seen: dict[Labels, list[float]] = defaultdict(list)
        for at, samples in self.history:
            if self.at - span_s <= at <= self.at:
                self._place = place
                for labels, value in self.selected(name, samples).items():
                    seen[labels].append(value)
        self._place = after
        grown = {labels: _growth(values) for labels, values in seen.items() if len(values) > 1}
        return {labels: growth / span_s if is_rate else growth for labels, growth in grown.items()}

    def selected(self, name: str, samples: Samples) -> Vector:
        self.names.add(name)
        matchers: list[tuple[str, str, str]] = []
        if self.next == "{":
            self.take()
            while self.next != "}":
                label, operator, text = self.take(), self.take(), self.take()
                matchers.append((label, operator, text[1:-1]))
                if self.next == ",":
                    self.take()
            self.take()
        return {
            labels: value
            for labels, value in samples.get(name, {}).items()
            if all(_matches(dict(labels).get(label, ""), by, text) for label, by, text in matchers)
        }


def _matches(value: str, operator: str, text: str) -> bool:
    is_found = value == text if operator in ("=", "!=") else re.fullmatch(text, value) is not None
    return is_found is (operator in ("=", "=~"))


def _growth(values: list[float]) -> float:
    """Of a counter, which restarts at zero."""
    return sum(now - before if now >= before else now for before, now in pairwise(values))


def _quantiles(quantile: float, buckets: Vector) -> Vector:
    groups: dict[Labels, dict[float, float]] = defaultdict(dict)
    for labels, value in buckets.items():
        rest = frozenset(pair for pair in labels if pair[0] != "le")
        groups[rest][float(dict(labels)["le"])] = value
    return {labels: _quantile(quantile, group) for labels, group in groups.items() if group.get(math.inf)}


def _quantile(quantile: float, counts: Mapping[float, float]) -> float:
    target, lower, below = quantile * counts[math.inf], 0.0, 0.0
    for bound in sorted(counts):
        if counts[bound] >= target:
            if math.isinf(bound):
                return lower
            return lower + (bound - lower) * (target - below) / (counts[bound] - below)
        lower, below = bound, counts[bound]
    raise AssertionError("counts of buckets add up")


def _joined(operator: str, left: Value, right: Value, on: frozenset[str] | None) -> Value:
    if isinstance(left, float) and isinstance(right, float):
        return _ARITHMETIC[operator](left, right)  # Prometheus requires `bool` to compare two numbers
    if operator in ("and", "or", "unless"):
        assert isinstance(left, dict) and isinstance(right, dict)
        theirs = {_only(labels, on) for labels in right}
        if operator == "or":
            ours = {_only(labels, on) for labels in left}
            return left | {labels: value for labels, value in right.items() if _only(labels, on) not in ours}
        return {labels: value for labels, value in left.items() if (_only(labels, on) in theirs) is (operator == "and")}
    pairs: Any
    if isinstance(right, float):
        pairs = ((labels, value, right, value) for labels, value in left.items())  # type: ignore[union-attr]
    elif isinstance(left, float):
        pairs = ((labels, left, value, value) for labels, value in right.items())
    else:
        theirs_by = {_only(labels, on): value for labels, value in right.items()}
        assert len(theirs_by) == len(right), "many to one is not of our part of PromQL"
        pairs = (
            (_only(labels, on), value, theirs_by[_only(labels, on)], value)
            for labels, value in left.items()
            if _only(labels, on) in theirs_by
        )
    if operator in _COMPARE:
        return {labels: kept for labels, a, b, kept in pairs if _COMPARE[operator](a, b)}
    return {labels: _ARITHMETIC[operator](a, b) for labels, a, b, _ in pairs}


def _only(labels: Labels, names: frozenset[str] | None) -> Labels:
    return labels if names is None else frozenset(pair for pair in labels if pair[0] in names)
