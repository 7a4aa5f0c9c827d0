"""The whole API, called with what its document allows and with what it forbids: no 5xx, nothing undocumented.

A few calls each here; `make soak` makes more, and tests/bench/schema_calls.py tens of thousands.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.bench.schema_calls import Tally, call_everything, send_hostile_bodies
from tests.bench.schema_world import NOBODY, api_document, serving


@dataclass(frozen=True, slots=True)
class Served:
    base_url: str
    document: dict[str, Any]


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return api_document()


@pytest.fixture
def served(transactional_db: None, settings: Any, document: dict[str, Any]) -> Iterator[Served]:
    from backend.asgi import application

    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, rate_scale=100_000.0)
    with serving(application) as base_url:
        yield Served(base_url, document)


def told(tally: Tally) -> str:
    return "\n\n".join(f"{kind}\n{text}" for kind, text in tally.failures.items())


def test_whatever_is_sent_is_answered_as_the_document_says(served: Served) -> None:
    tally = call_everything(served.document, served.base_url, roles=("owner", NOBODY), examples=1)
    print(tally.calls, dict(tally.by_status))
    assert not tally.failures, told(tally)
    assert tally.by_status[401] and tally.by_status[200] and tally.by_status[422]


def test_hostile_bodies_are_refused_in_words(served: Served) -> None:
    tally = send_hostile_bodies(served.document, served.base_url)
    assert not tally.failures, told(tally)
    assert set(tally.by_status) >= {400, 415}


@pytest.mark.soak
def test_every_role_and_many_calls(served: Served) -> None:
    tally = call_everything(served.document, served.base_url, examples=10)
    print(tally.calls, dict(tally.by_status))
    assert not tally.failures, told(tally)
