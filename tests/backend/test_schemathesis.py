"""The whole API, called with documented and with invalid values: no 5xx, nothing undocumented.

Half of the calls hold one hostile value (`tests/bench/site/hostile.py`). Here they run in this process and are rolled
back; hostile bodies go through a real server, as does everything in `tests/bench/site/schema_calls.py`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

import pytest

from tests.bench.site.in_process import INSIDE, session_inside
from tests.bench.site.schema_calls import Tally, call_everything, send_hostile_bodies
from tests.bench.site.schema_world import NOBODY, api_document, new_team
from tests.uvicorn_server import run_uvicorn

pytestmark = pytest.mark.long


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
    with run_uvicorn(application, log_level="error", timeout_graceful_shutdown=2) as base_url:
        yield Served(base_url, document)


@pytest.fixture
def call(db: None, settings: Any, document: dict[str, Any]) -> Callable[..., Tally]:
    """Every operation, as one team that persists."""
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, rate_scale=100_000.0)
    session, team = session_inside(), new_team()
    return partial(call_everything, document, INSIDE, session=session, only_team=team)


def told(tally: Tally) -> str:
    return "\n\n".join(f"{kind}\n{text}" for kind, text in tally.failures.items())


def test_whatever_is_sent_is_answered_as_the_document_says(call: Callable[..., Tally]) -> None:
    tally = call(roles=("owner", NOBODY), examples=1)
    print(tally.calls, dict(tally.by_status))
    assert not tally.failures, told(tally)
    assert tally.by_status[401] and tally.by_status[200] and tally.by_status[422]


def test_hostile_bodies_are_refused_in_words(served: Served) -> None:
    tally = send_hostile_bodies(served.document, served.base_url)
    assert not tally.failures, told(tally)
    assert set(tally.by_status) >= {400, 415}


@pytest.mark.soak
def test_every_role_and_50_000_calls(call: Callable[..., Tally]) -> None:
    tally = Tally()
    for start in count(1):
        tally.add(call(examples=20, start=start, until=50_000 - tally.calls))
        print(tally.calls, dict(tally.by_status))
        assert not tally.failures, told(tally)
        if tally.calls >= 50_000:
            break
