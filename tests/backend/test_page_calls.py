"""Every page, called with hostile values: no 5xx, no traceback, no path of this machine.

A tenth of the calls of `make soak`; `python -m tests.bench.site.page_calls` makes any number of calls.
"""

from dataclasses import replace
from typing import Any

import pytest

from tests.bench.site.page_calls import Found, call_pages

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _as_often_as_one_likes(settings: Any) -> None:
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, rate_scale=100_000.0)


def judge(found: Found) -> None:
    print(found.calls, dict(found.by_status))
    assert not found.failures, "\n\n".join(f"{kind}\n{told}" for kind, told in found.failures.items())
    assert {200, 302, 400, 404} <= set(found.by_status), "no call got anywhere"


@pytest.mark.long
def test_no_page_breaks_whatever_is_sent() -> None:
    judge(call_pages(1_000, seed=1))


@pytest.mark.soak
def test_no_page_breaks_in_many_calls() -> None:
    judge(call_pages(10_000, seed=2))
