"""Label selectors: which are accepted and which hosts match. tests/infra/test_two_kinds.py compares with a real Ray."""

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
def test_host_must_match_the_whole_selector(selector: dict[str, str], chosen: bool) -> None:
    assert is_chosen(H100, selector) is chosen
    accepted = PoolTerms(labels=selector).labels
    assert is_chosen(H100, accepted) is chosen and not any(" " in choice for choice in accepted.values())


@pytest.mark.parametrize(
    "selector",
    [
        *({"": "a"}, {"/a": "b"}, {"a/": "b"}, {"a b": "c"}, {"x" * 64: "a"}, {"-a": "b"}, {"a\n": "b"}),
        *({"a": ""}, {"a": "in()"}, {"a": "in(b,"}, {"a": "!!b"}, {"a": "b c"}, {"a": "x" * 64}, {"a": "b\n"}),
        {f"a{number}": "b" for number in range(17)},
    ],
)
def test_malformed_selector_is_refused(selector: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        PoolTerms(labels=selector)


def test_refusal_names_the_accepted_forms() -> None:
    with pytest.raises(ValidationError, match=r"zone: must be a value, !value, in\(a, b\) or !in\(a, b\); got '=a'"):
        PoolTerms(labels={"zone": "=a"})
    assert written({"ray.io/accelerator-type": "H100", "zone": "!a"}) == "ray.io/accelerator-type=H100, zone=!a"


def test_order_keeps_the_terms_of_its_pool() -> None:
    fields: dict[str, Any] = {"job": "job_1", "attempt": 1, "fence": 1, "control_url": "http://x", "token": "t"}
    order = AttemptOrder(spec=JobSpec(name="x"), **fields, pool=PoolTerms(labels={"zone": "a"}, device="cpu"))
    assert AttemptOrder.read(order.model_dump_json().encode()) == order
