"""Selectors of labels: what is taken in, and whom it chooses. tests/infra/test_two_kinds.py asks a real Ray too."""

from typing import Any

import pytest
from pydantic import ValidationError

from engine.spec.control import AttemptOrder, PoolTerms
from engine.spec.job import JobSpec
from engine.spec.labels import is_chosen, written

H100 = {"accelerator": "H100", "zone": "a"}


@pytest.mark.parametrize(
    ("selector", "chosen"),
    [
        ({}, True),
        ({"accelerator": "H100"}, True),
        ({"accelerator": "A100"}, False),
        ({"accelerator": "!A100"}, True),
        ({"accelerator": "!H100"}, False),
        ({"accelerator": "in(A100, H100)"}, True),
        ({"accelerator": "!in(A100,H100)"}, False),
        ({"accelerator": "H100", "zone": "b"}, False),
        ({"spot": "true"}, False),
        ({"spot": "!true"}, True),
    ],
)
def test_a_host_is_chosen_by_all_of_a_selector(selector: dict[str, str], chosen: bool) -> None:
    assert is_chosen(H100, selector) is chosen
    told = PoolTerms(labels=selector).labels
    assert is_chosen(H100, told) is chosen and not any(" " in choice for choice in told.values())


@pytest.mark.parametrize(
    "selector",
    [
        *({"": "a"}, {"/a": "b"}, {"a/": "b"}, {"a b": "c"}, {"x" * 64: "a"}, {"-a": "b"}, {"a\n": "b"}),
        *({"a": ""}, {"a": "in()"}, {"a": "in(b,"}, {"a": "!!b"}, {"a": "b c"}, {"a": "x" * 64}, {"a": "b\n"}),
        {f"a{number}": "b" for number in range(17)},
    ],
)
def test_a_selector_that_ray_would_refuse_is_refused(selector: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        PoolTerms(labels=selector)


def test_a_refusal_says_what_would_be_taken() -> None:
    with pytest.raises(
        ValidationError, match=r"of the label zone: a value, !value, in\(a, b\) or !in\(a, b\); got '=a'"
    ):
        PoolTerms(labels={"zone": "=a"})
    assert written({"ray.io/accelerator-type": "H100", "zone": "!a"}) == "ray.io/accelerator-type=H100, zone=!a"


def test_an_order_names_the_terms_of_its_pool() -> None:
    told: dict[str, Any] = {"job": "job_1", "attempt": 1, "fence": 1, "control_url": "http://x", "token": "t"}
    kept_apart = AttemptOrder(spec=JobSpec(name="x"), **told, pool=PoolTerms(labels={"zone": "a"}, device="cpu"))
    assert AttemptOrder.read(kept_apart.model_dump_json().encode()) == kept_apart
