"""Stale packed copies on one worker: a CPU computes with them, and the parameters that were packed are right."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.model_executor.layers import utils as layer_utils
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.model_loader.reload import layerwise

from engine.inference.vllm import weights as vllm_weights
from engine.inference.vllm.engine import VllmRolloutEngine
from engine.inference.vllm.held_parts import NUM_COLUMNS, differs_packed
from engine.inference.vllm.stored import is_packed
from engine.policy.lineage import WeightsId
from engine.weights.probe import OtherWeights, compare
from engine.weights.snapshot import map_weights, pack_weights
from tests.engine.inference.rollout_engine_builders import make_model, own_weights, perturbed
from tests.vllm.conftest import MakeVllm
from tests.vllm.held import recorded
from tests.vllm.trained import Trained, trained


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return trained(tmp_path_factory.mktemp("trained"))


def layers_of(engine: VllmRolloutEngine) -> dict[str, Any]:
    model = engine._llm.engine_core.engine_core.model_executor.driver_worker.get_model()
    return dict(model.named_modules())


def keeping(stale: Any, renew: Callable[..., None]) -> Callable[..., None]:
    """Leaves the packed copy of one layer as it was."""

    def renew_others(layer: Any, *arguments: Any, **options: Any) -> None:
        before = getattr(layer, "cpu_linear", None)
        renew(layer, *arguments, **options)
        if layer is stale:
            layer.cpu_linear = before

    return renew_others


def computes_with_a_copy(head: Any) -> bool:
    """False on a processor for which vLLM packs no bfloat16 matrix."""
    units = torch.eye(head.weight.shape[1], dtype=head.weight.dtype)[:1]
    before = head.cpu_linear(units, head.weight, None).clone()
    kept = head.weight.data[0, 0].clone()
    head.weight.data[0, 0] += 1
    after = head.cpu_linear(units, head.weight, None)
    head.weight.data[0, 0] = kept
    return bool(before.equal(after))


def test_tied_head_a_small_step_behind_is_named_where_the_probe_passes(
    make_engine: MakeVllm, versions: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, manifest = make_engine(versions.folder), versions.second.manifest
    assert manifest.probe is not None
    engine.install(versions.first)
    if not computes_with_a_copy(layers_of(engine)["lm_head"]):
        pytest.skip("not on this processor: vLLM packs no bfloat16 head here")
    with monkeypatch.context() as unrepaired:
        unrepaired.setattr(vllm_weights, "_tied_heads", lambda model: [])
        with pytest.raises(OtherWeights, match=r"version 1: .* 1 of \d+ tensors .*: model\.embed_tokens\.weight\."):
            engine.install(versions.second)
    compare(manifest, engine.probe(manifest.probe.token_ids))
    engine.install(versions.second)


def test_stale_copy_of_a_matrix_and_of_a_head_is_named(
    make_engine: MakeVllm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32, which every CPU packs."""
    base = make_model(tmp_path)
    engine, (changed, _) = make_engine(base.folder), perturbed(base, version=1)
    layers = layers_of(engine)
    for path, names in {
        "model.layers.1.mlp.down_proj": r"1 of \d+ .*: model\.layers\.1\.mlp\.down_proj\.weight\.",
        "model.layers.0.self_attn.qkv_proj": r"3 of \d+ .*: model\.layers\.0\.self_attn\.\w_proj\.weight",
        "lm_head": r"1 of \d+ .*: lm_head\.weight\.",
    }.items():
        assert path == "lm_head" or is_packed(layers[path])
        with monkeypatch.context() as stale:
            renew = keeping(layers[path], layer_utils.dispatch_cpu_unquantized_gemm)
            stale.setattr(layer_utils, "dispatch_cpu_unquantized_gemm", renew)
            with pytest.raises(OtherWeights, match=names):
                engine.install(changed)
        engine.install(changed)
        engine.install(own_weights(base, version=0))


def test_experts_packed_but_not_put_in_place_are_named(
    make_engine: MakeVllm, versions: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(versions.folder)
    engine.install(versions.first)
    (stale,) = [
        layer
        for path, layer in layers_of(engine).items()
        if isinstance(layer, RoutedExperts) and path.startswith("model.layers.2.")
    ]
    copy, place = layerwise._copy_and_restore_kernel_tensors, layerwise._place_kernel_tensors
    with monkeypatch.context() as planted:
        planted.setattr(
            layerwise,
            "_copy_and_restore_kernel_tensors",
            lambda layer, info: (place if layer is stale else copy)(layer, info),
        )
        with pytest.raises(OtherWeights, match=r"18 of \d+ .*: model\.layers\.2\.mlp\.experts\."):
            engine.install(versions.second)
    engine.install(versions.second)


def test_version_in_another_format_than_the_replicas_is_not_compared(
    make_engine: MakeVllm, versions: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(versions.folder)
    held = recorded(engine, monkeypatch)
    wider = {name: tensor.float() for name, tensor in map_weights(versions.second).items()}
    engine.install(pack_weights(wider, weights=WeightsId(0, 1)))
    assert {part.sum for worker in held for part in worker.parts} == {None}


def test_stale_column_is_found_within_as_many_versions_as_needed() -> None:
    plain = torch.randn(8, 3 * NUM_COLUMNS)
    packed = plain.clone()
    packed[5, 100] += 1.0
    method = SimpleNamespace(apply=lambda layer, units: units @ packed.t())
    found = [differs_packed(SimpleNamespace(quant_method=method), plain, version) for version in range(6)]
    assert sum(found[:3]) == 1 and found[3:] == found[:3]
