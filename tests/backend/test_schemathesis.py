"""The whole API, called with what its document allows and with what it forbids: no 5xx, nothing undocumented.

A few calls each here; `make soak` makes more, and tests/bench/schema_calls.py tens of thousands.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.bench.schema_calls import Tally, call_everything, send_hostile_bodies
from tests.bench.schema_world import World, build, serving


@pytest.fixture
def world(transactional_db: None, settings: Any) -> Iterator[World]:
    from backend.asgi import application

    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, rate_scale=100_000.0)
    with serving(application) as base_url:
        yield build(base_url)


def told(tally: Tally) -> str:
    return "\n\n".join(f"{kind}\n{text}" for kind, text in tally.failures.items())


def call_all(world: World, roles: tuple[str, ...], examples: int) -> Tally:
    keys = {role: key for role, key in world.fresh_keys().items() if role in roles}
    return call_everything(world.document, world.base_url, keys=keys, things=world.fresh_things(), examples=examples)


def test_whatever_is_sent_is_answered_as_the_document_says(world: World) -> None:
    tally = call_all(world, ("owner", "nobody"), 1)
    print(tally.calls, dict(tally.by_status))
    assert not tally.failures, told(tally)
    assert tally.by_status[401] and tally.by_status[200] and tally.by_status[422]


def test_hostile_bodies_are_refused_in_words(world: World) -> None:
    key = world.fresh_keys()["owner"]
    assert key is not None
    tally = send_hostile_bodies(world.document, world.base_url, key=key, things=world.fresh_things())
    assert not tally.failures, told(tally)
    assert set(tally.by_status) >= {400, 415}


@pytest.mark.soak
def test_every_role_and_many_calls(world: World) -> None:
    tally = call_all(world, ("nobody", "owner", "admin", "member", "viewer"), 10)
    print(tally.calls, dict(tally.by_status))
    assert not tally.failures, told(tally)
