"""The engine while vLLM runs a step ahead, as with asynchronous scheduling on a GPU: a step returns the tokens of the
previous one. A CPU has no such scheduling, so the core runs in the mode for pipelined devices."""

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.inference.vllm.engine import VllmRolloutEngine
from tests.engine.inference.rollout_engine_builders import (
    Reference,
    ask,
    finish,
    make_model,
    own_weights,
    perturbed,
    step_until,
)
from tests.engine.inference.rollout_engine_conformance import RolloutEngineConformance
from tests.vllm.conftest import MakeVllm

PROMPT = (5, 6, 7, 8)


def core_of(engine: VllmRolloutEngine) -> Any:
    return engine._llm.engine_core.engine_core


@pytest.fixture
def make_engine(make_engine: MakeVllm) -> Iterator[MakeVllm]:
    before: dict[Any, dict[str, Any]] = {}

    def make(folder: Path, **options: Any) -> VllmRolloutEngine:
        engine = make_engine(folder, **options)
        core = core_of(engine)
        if core not in before:
            before[core] = {name: getattr(core, name) for name in ("batch_queue", "batch_queue_size", "step_fn")}
            core.batch_queue, core.batch_queue_size, core.step_fn = deque(maxlen=2), 2, core.step_with_batch_queue
        return engine

    yield make
    for core, settings in before.items():
        while core.batch_queue:
            core.step_fn()
        for name, value in settings.items():
            setattr(core, name, value)


class TestVllmAhead(RolloutEngineConformance):
    """The whole conformance suite."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return make_model(tmp_path_factory.mktemp("model"))


def test_token_in_flight_is_reported_with_its_own_weights(make_engine: MakeVllm, base: Reference) -> None:
    engine = make_engine(base.folder)
    weights, _ = perturbed(base, version=2)
    engine.submit([ask("a", PROMPT, new=12)])
    num_returned = step_until(engine, "a", 3)
    while not any(step.total_num_scheduled_tokens for _, step, _ in core_of(engine).batch_queue):
        engine.step()
    engine.install(weights)
    assert not core_of(engine).batch_queue
    output = finish(engine)["a"]
    num_old = output.versions.count(0)
    assert output.versions == (0,) * num_old + (2,) * (12 - num_old) and num_returned < num_old < 12
    assert output.token_ids[:num_old] == base.greedy(PROMPT, num_old)


def test_sequence_ended_in_flight_is_reported_or_moves_on(make_engine: MakeVllm, base: Reference) -> None:
    engine, other = make_engine(base.folder), make_engine(base.folder, copy=1)
    weights, _ = perturbed(base, version=2)
    for moves in (False, True):
        engine.install(own_weights(base, version=0))
        engine.submit([ask("a", PROMPT, new=4)])
        step_until(engine, "a", 3)
        while not any(step.total_num_scheduled_tokens for _, step, _ in core_of(engine).batch_queue):
            assert not engine.step()
        engine.install(weights)
        assert engine.view().num_running == 1
        if moves:
            (request,) = engine.export(["a"], leave=True, with_kv=True)
            assert request.progress is not None and len(request.progress.token_ids) == 3
            assert not engine.step()
            other.submit([request])
            (output,) = finish(other).values()
        else:
            (output,) = engine.step()
        assert output.token_ids == base.greedy(PROMPT, 4) and output.reason == "length"
        assert output.versions == (0, 0, 0, 0)
