"""Routes of micro-batches: each token has its own; samples that share a prompt use the first one's routes."""

from collections.abc import Sequence

import pytest
import torch

from engine.models.mixture import MixtureShape
from engine.models.routes import RouteFormat
from engine.training.port import TrainingTrajectory
from engine.training.step.micro_batch import MicroBatch, batch_step
from engine.training.step.routes import route_sums
from tests.engine.training.routed import random_routes

SHAPE = MixtureShape(num_experts=7, chosen=2, expert_width=8, renormalised=True, layers=(0, 2, 3))
LAYOUT = RouteFormat.of(SHAPE)
PROMPT = (4, 5, 6, 7)


def sample(response: Sequence[int], routes: bytes, *, prompt: Sequence[int] = PROMPT) -> TrainingTrajectory:
    return TrainingTrajectory(
        group=0,
        prompt_ids=tuple(prompt),
        response_ids=tuple(response),
        behaviour_logprobs=(-1.0,) * len(response),
        reward=1.0,
        routes=routes,
    )


def routes_of(num_tokens: int, seed: int) -> bytes:
    return LAYOUT.packed(random_routes(LAYOUT, num_tokens, torch.Generator().manual_seed(seed)))


def batched(trajectories: Sequence[TrainingTrajectory], max_tokens: int = 100) -> Sequence[MicroBatch]:
    return batch_step(trajectories, max_tokens=max_tokens, device="cpu", route_format=LAYOUT).micro_batches


@pytest.mark.parametrize("max_tokens", [8, 100])
def test_each_token_keeps_its_route_when_packed(max_tokens: int) -> None:
    sizes = (2, 5, 3)
    samples = [sample(range(8, 8 + size), routes_of(4 + size, size), prompt=range(size, 4 + size)) for size in sizes]
    seen = 0
    for batch in batched(samples, max_tokens):
        assert batch.routes_TWk is not None
        for member, places in batch.tokens.places.items():
            expected = LAYOUT.opened(samples[member].routes)[: len(places)]
            assert torch.equal(batch.routes_TWk[list(places)], expected)
            seen += 1
    assert seen == 3


def test_shared_prompt_has_the_first_samples_routes() -> None:
    one, other = routes_of(6, 0), routes_of(6, 1)
    size = 4 * LAYOUT.token_bytes
    assert one[:size] != other[:size]
    both = [sample((8, 9), one), sample((10, 11, 12), other)]
    (batch,) = batched(both)
    assert batch.routes_TWk is not None
    assert len(batch.ids) == 4 + 1 + 2
    first = next(iter(batch.tokens.places))
    expected = LAYOUT.opened(both[first].routes)[:4]
    for member, places in batch.tokens.places.items():
        routes = batch.routes_TWk[list(places)]
        assert torch.equal(routes[:4], expected)
        assert torch.equal(routes[4:], LAYOUT.opened(both[member].routes)[4 : len(places)])


def test_without_any_routes_every_token_is_counted() -> None:
    (batch,) = batched([sample((8, 9), b""), sample((10, 11), b"")])
    sums = route_sums(batch.routes_TWk)
    assert (int(sums["unrouted"]), int(sums["routable"])) == (6, 6)


def test_only_missing_or_unknown_routes_are_counted() -> None:
    routes_TWk = LAYOUT.opened(routes_of(4, 0)).clone()
    routes_TWk[1] = LAYOUT.unknown
    (batch,) = batched([sample((8, 9), LAYOUT.packed(routes_TWk))])
    assert int(route_sums(batch.routes_TWk)["unrouted"]) == 2  # the second and the fifth token


def test_a_dense_model_has_no_routes() -> None:
    dense = batch_step([sample((8, 9), b"")], max_tokens=9, device="cpu").micro_batches[0]
    assert dense.routes_TWk is None and route_sums(dense.routes_TWk) == {}
