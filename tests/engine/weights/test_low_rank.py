"""Adapters as versions: added to the base that they were trained on, completely or not at all."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.models.loading import load_decoder, model_tensors
from engine.policy.lineage import WeightsId
from engine.weights.delta import apply_delta, make_delta
from engine.weights.installing import Installer
from engine.weights.low_rank import fingerprint, names_of
from engine.weights.port import LowRank, WeightVersion
from engine.weights.snapshot import map_weights, pack_weights
from tests.engine.conftest import MakeLlama

MODULE = "model.layers.1.mlp.down_proj"


def adapter(folder: Path, *, version: int, rank: int = 3, columns: int = 48, module: str = MODULE) -> WeightVersion:
    chance = torch.Generator().manual_seed(version)
    pair = torch.randn(rank, columns, generator=chance), torch.randn(32, rank, generator=chance)
    low_rank = LowRank(base=fingerprint(folder), scale=0.5)
    return pack_weights(
        dict(zip(names_of(module), pair, strict=True)), weights=WeightsId(0, version), low_rank=low_rank
    )


def own(folder: Path) -> tuple[Installer, dict[str, Tensor]]:
    return Installer(folder, device="cpu", is_of_base=True), model_tensors(load_decoder(folder, device="cpu"))


def test_version_is_added_to_the_base_not_to_the_last_version(make_llama: MakeLlama) -> None:
    folder = make_llama(dtype="bfloat16")
    installer, model = own(folder)
    base = load_file(folder / "model.safetensors")
    for number in (1, 2):
        version = adapter(folder, version=number)
        installer.install(version, model)
        a, b = (map_weights(version)[name] for name in names_of(MODULE))
        expected = (base[f"{MODULE}.weight"].float() + 0.5 * (b @ a)).bfloat16()
        assert torch.equal(model[f"{MODULE}.weight"], expected)
        assert all(torch.equal(model[name], base[name]) for name in base if name != f"{MODULE}.weight")


def test_adapter_after_whole_weights_restores_the_base(make_llama: MakeLlama) -> None:
    folder = make_llama()
    installer, model = own(folder)
    other = {name: tensor + 1.0 for name, tensor in model.items()}
    installer.install(pack_weights(other, weights=WeightsId(0, 1)), model)
    installer.install(adapter(folder, version=2), model)
    alone, expected = own(folder)
    alone.install(adapter(folder, version=2), expected)
    assert all(torch.equal(model[name], expected[name]) for name in expected)


def test_adapter_that_does_not_fit_is_refused_unchanged(make_llama: MakeLlama) -> None:
    folder = make_llama()
    installer, model = own(folder)
    before = {name: tensor.clone() for name, tensor in model.items()}
    fitting = adapter(folder, version=1)
    torn = replace(fitting, manifest=replace(fitting.manifest, tensors=fitting.manifest.tensors[:1]))
    for version, error in (
        (adapter(make_llama(kv_heads=1), version=1), "an adapter of another base"),
        (adapter(folder, version=1, columns=47), "not of this model"),
        (adapter(folder, version=1, module="model.layers.7.mlp.down_proj"), "not of this model"),
        (torn, "not of this model"),
    ):
        with pytest.raises(ValueError, match=f"^version 1: {error}"):
            installer.install(version, model)
    assert all(torch.equal(model[name], before[name]) for name in before)


@pytest.mark.parametrize("row", [0, -1])
def test_base_trained_further_has_another_fingerprint(make_llama: MakeLlama, tmp_path: Path, row: int) -> None:
    folder = make_llama()
    weights = load_file(folder / "model.safetensors")
    save_file(weights, tmp_path / "model.safetensors")
    assert fingerprint(tmp_path) == fingerprint(folder)
    weights["model.norm.weight"][row] += 1e-3
    save_file(weights, tmp_path / "model.safetensors")
    assert fingerprint(tmp_path) != fingerprint(folder)


def test_an_adapter_travels_as_a_delta_too(make_llama: MakeLlama) -> None:
    before = adapter(make_llama(), version=1)
    moved = {name: tensor.clone() for name, tensor in map_weights(before).items()}
    moved[names_of(MODULE)[0]][1, 7] = 2.0
    after = pack_weights(moved, weights=WeightsId(0, 2), low_rank=before.manifest.low_rank)
    delta = make_delta(before, after, chunk_bytes=1_000)
    assert delta is not None
    made = bytearray(before.buffer)
    apply_delta(delta.buffer, made)
    assert made == after.buffer
