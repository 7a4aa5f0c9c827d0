"""The PromQL evaluator, against values computed by hand and from Prometheus' documentation."""

import math
from typing import Any

import pytest

from tests.backend.monitoring.promql import History, Value, value_of


def series(**values: float) -> dict[str, dict[Any, float]]:
    """`a__x` is the metric a with x as its label."""
    samples: dict[str, dict[Any, float]] = {}
    for name, value in values.items():
        metric, _, label = name.partition("__")
        samples.setdefault(metric, {})[frozenset([("of", label)])] = value
    return samples


HISTORY: History = [
    (0.0, series(a__x=1, a__y=5, b__x=2, n__x=10)),
    (60.0, series(a__x=3, a__y=5, b__x=2, n__x=4)),
]


def plain(value: Value) -> Any:
    return (
        value
        if isinstance(value, float)
        else {"".join(text for _, text in labels): one for labels, one in value.items()}
    )


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("a", {"x": 3, "y": 5}),
        ('a{of="x"}', {"x": 3}),
        ('a{of!="x"}', {"y": 5}),
        ('a{of=~"x|z"}', {"x": 3}),
        ('a{of!~"x|z"}', {"y": 5}),
        ("a > 4", {"y": 5}),
        ("a * 2 + 1", {"x": 7, "y": 11}),
        ("2 + 3 * 4", 14.0),
        ("time() - a", {"x": 57, "y": 55}),
        ("a / b", {"x": 1.5}),
        ("a and b", {"x": 3}),
        ("a unless b", {"y": 5}),
        ("b or a", {"x": 2, "y": 5}),
        ("a > 4 or a < 4 and b", {"x": 3, "y": 5}),
        ("a and on () b", {"x": 3, "y": 5}),
        ("sum(a)", {"": 8}),
        ("max by (of) (a)", {"x": 3, "y": 5}),
        ("absent(c)", {"": 1}),
        ("absent(a)", {}),
        ("increase(a[5m])", {"x": 2, "y": 0}),
        ("increase(n[5m])", {"x": 4}),  # it restarted
        ("rate(a[2m])", {"x": 2 / 120, "y": 0}),
        ("c > 1", {}),
    ],
)
def test_it_gives_what_prometheus_gives(expression: str, wanted: Any) -> None:
    assert plain(value_of(expression, HISTORY, 60.0)) == pytest.approx(wanted)


def test_a_quantile_lies_within_its_bucket() -> None:
    counts = {"1.0": 10.0, "2.0": 30.0, "+Inf": 40.0}
    scrape = {"h_bucket": {frozenset([("le", bound)]): count for bound, count in counts.items()}}
    for quantile, wanted in ((0.25, 1.0), (0.5, 1.5), (0.99, 2.0)):
        value = value_of(f"histogram_quantile({quantile}, h_bucket)", [(0.0, scrape)], 0.0)
        assert value == {frozenset(): wanted}


def test_what_was_scraped_long_ago_is_gone() -> None:
    assert value_of("a", HISTORY, 60.0 + 301) == {}


@pytest.mark.parametrize(
    "expression", ["a offset 5m", "avg(a)", "a a", "rate(a)", "a[5m] > 1 }", "topk(1, a)", "1 > 2 $"]
)
def test_what_is_not_of_our_part_is_refused(expression: str) -> None:
    with pytest.raises(AssertionError):
        value_of(expression, HISTORY, 60.0)


def test_nothing_divided_by_nothing_is_no_alarm() -> None:
    zero: History = [(0.0, series(a__x=0, b__x=0))]
    assert math.isnan(value_of("a / b", zero, 0.0)[frozenset([("of", "x")])])  # type: ignore[index]
    assert value_of("a / b > 0.05", zero, 0.0) == {}
