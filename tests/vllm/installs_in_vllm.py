"""Installs of new weights in place, on one device: after each, vLLM matches `transformers` with these weights.

Faults here raise no error, so a test shows that each repair is needed.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from torch import Tensor

from engine.inference.vllm import weights as vllm_weights
from engine.inference.vllm.core import EngineBroken
from engine.inference.vllm.engine import VllmRolloutEngine
from engine.inference.vllm.start import read_shapes
from engine.weights.port import WeightVersion
from engine.weights.snapshot import map_weights
from tests.engine.inference.rollout_engine_builders import (
    Reference,
    answer,
    ask,
    make_model,
    own_weights,
    perturbed,
    without_sums,
)
from tests.vllm.conftest import MakeVllm
from tests.vllm.held import compared, recorded

MODELS: Final[dict[str, dict[str, Any]]] = {
    "tied": {"layout": "qwen3", "tied": True},
    "untied": {"layout": "qwen3"},
    "mixture": {"layout": "qwen3_moe", "expert_width": 32},  # with another width vLLM itself notices missing packs
}
PROMPTS: Final = ((5, 6, 7), tuple(5 + i % 40 for i in range(40)))
NUM_INSTALLS: Final = 10


@pytest.fixture(scope="module", params=MODELS)
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return make_model(tmp_path_factory.mktemp(request.param), **MODELS[request.param])


def answers_of(engine: VllmRolloutEngine) -> list[tuple[int, ...]]:
    return [answer(engine, ask("a", prompt)).token_ids for prompt in PROMPTS]


def expected(reference: Reference) -> list[tuple[int, ...]]:
    return [reference.greedy(prompt, 24) for prompt in PROMPTS]


def test_engine_matches_transformers_after_each_of_ten_installs(
    make_engine: MakeVllm, base: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(base.folder)
    held = recorded(engine, monkeypatch)
    changed_weights, changed = perturbed(base, version=1)
    assert answers_of(engine) == expected(base) != expected(changed)
    for number in range(NUM_INSTALLS // 2):
        engine.install(changed_weights)
        assert answers_of(engine) == expected(changed), f"install {2 * number}"
        assert compared(held) == set(read_shapes(base.folder))
        engine.install(own_weights(base, version=2))
        assert answers_of(engine) == expected(base), f"install {2 * number + 1}"


def test_packed_weights_of_a_cpu_are_renewed_by_our_repair(
    make_engine: MakeVllm, base: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(base.folder)
    changed_weights, changed = perturbed(base, version=1)
    with monkeypatch.context() as without:
        without.setattr(vllm_weights, "_tied_heads", lambda model: [])
        for method in _experts(engine):
            without.setattr(method, "process_weights_after_loading", method.process_weights_after_loading.__wrapped__)
        engine.install(without_sums(changed_weights))
        is_stale = base.model.config.tie_word_embeddings or bool(_experts(engine))
        assert (answers_of(engine) != expected(changed)) == is_stale
    engine.install(changed_weights)
    assert answers_of(engine) == expected(changed)


def test_empty_engine_refuses_requests_before_its_first_version(make_engine: MakeVllm, base: Reference) -> None:
    engine = make_engine(base.folder, begins_empty=True)
    with pytest.raises(RuntimeError, match="a version must be installed"):
        engine.submit([ask("a", PROMPTS[0])])
    engine.install(own_weights(base, version=1))
    assert answers_of(engine) == expected(base)


def _experts(engine: VllmRolloutEngine) -> list[Any]:
    model = engine._llm.engine_core.engine_core.model_executor.driver_worker.get_model()
    methods = (getattr(layer, "quant_method", None) for layer in model.modules())
    return [method for method in methods if getattr(method, "moe_kernel", None) is not None]


def test_failed_install_breaks_every_later_call(
    make_engine: MakeVllm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Engines of a process share their position tables; this layout has a table of its own.
    base = make_model(tmp_path, layout="yarn")
    engine = make_engine(base.folder)
    engine.submit([ask("a", PROMPTS[0])])
    engine.step()
    monkeypatch.setattr(vllm_weights, "map_weights", Half)
    with pytest.raises(OSError, match="no more"):
        engine.install(own_weights(base, version=1))
    monkeypatch.undo()
    with pytest.raises(EngineBroken, match=r"cannot be used anymore.*no more"):
        engine.install(own_weights(base, version=1))
    for call in (
        engine.step,
        engine.view,
        lambda: engine.submit([ask("b", PROMPTS[0])]),
        lambda: engine.abort(["a"]),
        lambda: engine.export(["a"], leave=True, with_kv=False),
    ):
        with pytest.raises(EngineBroken):
            call()


class Half(dict[str, Tensor]):
    """Yields half of the tensors, then raises."""

    def __init__(self, weights: WeightVersion) -> None:
        super().__init__(map_weights(weights))

    def items(self) -> Iterator[tuple[str, Tensor]]:  # type: ignore[override]
        for number, item in enumerate(super().items()):
            if number > len(self) // 2:
                raise OSError("no more tensors")
            yield item
