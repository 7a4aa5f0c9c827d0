"""Sums of weights on two workers: installs pass, and what one of them holds of an old version is named at once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from engine.inference.vllm import weights as vllm_weights
from engine.inference.vllm.adapters import AdapterEngines
from engine.inference.vllm.engine import VllmRolloutEngine
from engine.inference.vllm.start import AdapterRoom, read_shapes
from engine.weights.low_rank import names_of
from engine.weights.probe import OtherWeights, compare
from tests.engine.inference.rollout_engine_builders import Reference, adapted
from tests.vllm.held import compared, recorded
from tests.vllm.trained import Trained, trained
from tests.vllm.two_workers import TwoWorkers, lend_folder

ADAPTERS = AdapterRoom(num=1, rank=8)
STALE = {
    "rows": "model.layers.1.self_attn.q_proj.weight",
    "head of keys that both hold": "model.layers.0.self_attn.k_proj.weight",
    "columns": "model.layers.0.self_attn.o_proj.weight",
    "stacked rows": "model.layers.1.mlp.up_proj.weight",
    "expert's columns": "model.layers.2.mlp.experts.4.down_proj.weight",
    "expert's rows": "model.layers.0.mlp.experts.1.gate_proj.weight",
    "tied table": "model.embed_tokens.weight",
    "router that both hold": "model.layers.0.mlp.gate.weight",
    "norm that both hold": "model.layers.2.self_attn.q_norm.weight",
}


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return trained(tmp_path_factory.mktemp("trained"))


@pytest.fixture(scope="module")
def workers(versions: Trained) -> Iterator[TwoWorkers]:
    workers = TwoWorkers(versions.folder, ADAPTERS)
    yield workers
    workers.engine.close()


@pytest.fixture
def engine(workers: TwoWorkers) -> VllmRolloutEngine:
    return workers.engine


def test_installs_pass_and_every_tensor_is_compared(
    engine: VllmRolloutEngine, versions: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = recorded(engine, monkeypatch, "install")
    for version in (versions.first, versions.second, versions.first):
        engine.install(version)
        assert len(held) == 2 and compared(held) == set(read_shapes(versions.folder))


@contextmanager
def planted(workers: TwoWorkers, plant: Callable[..., None], *args: object) -> Iterator[None]:
    workers.rpc(plant, *args)
    try:
        yield
    finally:
        workers.rpc(_restore)


@pytest.mark.parametrize("name", STALE.values(), ids=STALE)
def test_stale_shard_of_one_worker_is_named_at_the_first_install(
    workers: TwoWorkers, versions: Trained, name: str
) -> None:
    engine, probe = workers.engine, versions.second.manifest.probe
    assert probe is not None
    engine.install(versions.first)
    with (
        planted(workers, _load_old, vllm_weights.__name__, name, versions.old(name)),
        pytest.raises(OtherWeights, match=rf"version 1: .* 1 of \d+ tensors have other bits: {name}\."),
    ):
        engine.install(versions.second)
    assert engine.view().version == 0
    compare(versions.second.manifest, engine.probe(probe.token_ids))  # too small for the probe to detect
    engine.install(versions.second)


def _load_old(worker: Any, module: str, name: str, old: Tensor) -> None:
    """The second worker loads this tensor of an old version."""
    import importlib

    if worker.rank == 1:
        owner: Any = importlib.import_module(module)
        load, worker.restore = owner.map_weights, lambda: setattr(owner, "map_weights", load)
        owner.map_weights = lambda version: load(version) | {name: old}


def _restore(worker: Any) -> None:
    getattr(worker, "restore", lambda: None)()


def test_merged_adapter_passes_and_its_stale_shard_is_named(
    workers: TwoWorkers, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, versions: Trained
) -> None:
    engine = workers.engine
    version, _ = adapted(_reference(versions), version=3)
    held = recorded(engine, monkeypatch, "install")
    engine.install(version)
    assert compared(held) == set(read_shapes(versions.folder))
    with (
        planted(workers, _merge_otherwise, vllm_weights.__name__, STALE["rows"]),
        pytest.raises(OtherWeights, match=rf"version 3: .* 1 of \d+ tensors have other bits: {STALE['rows']}\."),
    ):
        engine.install(version)
    engine.install(version)


def _reference(versions: Trained) -> Reference:
    from transformers import Qwen3MoeForCausalLM

    return Reference(folder=versions.folder, model=Qwen3MoeForCausalLM.from_pretrained(versions.folder))


def _merge_otherwise(worker: Any, module: str, name: str) -> None:
    """The second worker's processor multiplies otherwise."""
    import importlib

    if worker.rank == 1:
        base: Any = importlib.import_module(module).Base
        whole, worker.restore = base.whole, lambda: setattr(base, "whole", whole)
        base.whole = lambda *args, **options: (
            (each, tensor * 1.01 if each == name else tensor) for each, tensor in whole(*args, **options)
        )


@pytest.mark.parametrize("part", ["a.weight", "b.weight"])
def test_adapter_in_addition_passes_and_its_stale_shard_is_named(
    workers: TwoWorkers, versions: Trained, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    engine, reference = workers.engine, _reference(versions)
    engine.install(versions.first)
    slot = AdapterEngines(engine, versions.folder, room=ADAPTERS, lend_folder=lend_folder).make()
    held = recorded(engine, monkeypatch, "adapter_parts")
    version, _ = adapted(reference, version=5)
    slot.install(version)
    assert compared(held) == {entry.name for entry in version.manifest.tensors}
    module = "model.layers.1.self_attn.qkv_proj"
    first, second = names_of("model.layers.1.self_attn.q_proj")
    with (
        planted(workers, _change_adapter, module, part.partition(".")[0]),
        pytest.raises(OtherWeights, match=rf"version 5: .* 1 of \d+ .*: {first if part[0] == 'a' else second}\."),
    ):
        slot.install(version)
    slot.install(version)


def test_adapter_that_changed_on_its_way_changes_nothing(engine: VllmRolloutEngine, versions: Trained) -> None:
    engine.install(versions.first)
    slot = AdapterEngines(engine, versions.folder, room=ADAPTERS, lend_folder=lend_folder).make()
    version, _ = adapted(_reference(versions), version=6)
    slot.install(version)
    changed = bytearray(version.buffer)
    changed[2] ^= 1
    torn = replace(version, buffer=memoryview(changed))
    for each, number in ((slot, 6), (engine, 0)):
        with pytest.raises(OtherWeights, match="version 6: the bytes that arrived are not"):
            each.install(torn)
        assert each.view().version == number


def _change_adapter(worker: Any, module: str, which: str) -> None:
    """The second worker's layer gets an element of another adapter."""
    if worker.rank == 1:
        layer = worker.model_runner.lora_manager._adapter_manager.modules[module]
        set_lora, worker.restore = layer.set_lora, lambda: setattr(layer, "set_lora", set_lora)

        def set_changed(index: int, *matrices: Any) -> None:
            set_lora(index, *matrices)
            getattr(layer, f"lora_{which}_stacked")[0][index, 0, 0, 0] += 1.0

        layer.set_lora = set_changed
