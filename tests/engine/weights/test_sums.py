"""Sums over bits: parts add up, one bit suffices, and the error of a replica with a stale tensor names the tensor."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine.inference.torch_engine import TorchRolloutEngine
from engine.models.loading import load_decoder, model_tensors
from engine.models.pieces import copy_tensor
from engine.policy.lineage import WeightsId
from engine.spec.job import AlgorithmSpec, OptimizerSpec, TrainerSpec
from engine.training.factory import build_trainer
from engine.weights import installing, sums
from engine.weights.port import WeightVersion
from engine.weights.probe import OtherWeights, compare
from engine.weights.snapshot import map_weights, pack_weights
from engine.weights.sums import added, fetched, sum_of, sum_of_range, sums_of
from tests.engine.conftest import MakeLlama
from tests.engine.training.trainer_conformance import settings, trajectories_of
from tests.engine.training.trainer_parts_conformance import save_qwen

pytestmark = pytest.mark.usefixtures("one_thread")

EMBEDDING, QUERY = "model.embed_tokens.weight", "model.layers.1.self_attn.q_proj.weight"
EXPERT = "model.layers.0.mlp.experts.2.down_proj.weight"
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = st.lists(st.integers(0, 7), max_size=3)


@given(SHAPES, st.sampled_from(DTYPES), st.lists(st.integers(0, 400), max_size=4), st.integers(1, 40))
def test_parts_cut_anywhere_add_up_to_the_whole(
    shape: list[int], dtype: torch.dtype, cuts: list[int], piece: int
) -> None:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(len(cuts)))
    flat = values.reshape(-1)
    ends = [0, *sorted(min(cut, len(flat)) for cut in cuts), len(flat)]
    parts = [fetched([sum_of_range(flat[first:last], first, shape, dtype=dtype)]) for first, last in pairwise(ends)]
    with pytest.MonkeyPatch.context() as small:
        small.setattr(sums, "CPU_PIECE", piece)
        whole = sums_of([values.to(dtype)])
    assert added(parts) == whole


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_bit_or_two_swapped_rows_or_columns_differ(dtype: torch.dtype) -> None:
    values = torch.randn(6, 5).to(dtype)
    before = sums_of([values])
    bits = values.view(sums.BITS[dtype.itemsize])
    for place in ((0, 0), (3, 4), (5, 2)):
        bits[place] ^= 1
        assert sums_of([values]) != before
        bits[place] ^= 1
    assert sums_of([values]) == before
    assert sums_of([values.flip(0)]) != before != sums_of([values.flip(1)])


def test_sum_does_not_depend_on_the_memory_layout() -> None:
    values = torch.randn(6, 5).bfloat16()
    by_columns = values.t().contiguous().t()
    in_float32 = fetched([sum_of(by_columns.float(), dtype=torch.bfloat16)])
    assert sums_of([by_columns]) == in_float32 == sums_of([values])


Versions = tuple[Path, WeightVersion, WeightVersion]


@pytest.fixture
def nudged(make_llama: MakeLlama) -> Versions:
    """A model with a tied head, and the same model with one bit changed in each tensor."""
    folder = make_llama(tied=True, dtype="bfloat16")
    first = pack_weights(model_tensors(load_decoder(folder, device="cpu")), weights=WeightsId(0, 0))
    tensors = {name: tensor.clone() for name, tensor in map_weights(first).items()}
    for tensor in tensors.values():
        tensor.view(torch.int16).view(-1)[0] ^= 1
    return folder, first, pack_weights(tensors, weights=WeightsId(0, 1))


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Versions:
    """A mixture with a tied head: the versions that a trainer publishes before and after one step."""
    folder = save_qwen(tmp_path_factory.mktemp("mixture"), "qwen3_moe", tie_word_embeddings=True, dtype="bfloat16")
    first, second = _trained(folder, TrainerSpec(compute_dtype="bfloat16"))
    return folder, first, second


def _trained(folder: Path, spec: TrainerSpec) -> Iterator[WeightVersion]:
    optimizer = OptimizerSpec(learning_rate=1e-6, warmup_steps=0)
    made = settings(trainer=spec, optimizer=optimizer, algorithm=AlgorithmSpec())
    trainer = build_trainer(folder, made, device="cpu")
    for number in range(2):
        published = trainer.snapshot(WeightsId(0, number))
        yield replace(published, manifest=replace(published.manifest, probe=trainer.probe()))
        if not number:
            trainer.train_step(trajectories_of(0))


Copy = Callable[..., None]


def leaving_out(stale: Tensor) -> Copy:
    """A copy that skips this part of an engine's weights."""

    def copy(target: Tensor, source: Tensor, *, what: str) -> None:
        before = stale.clone()
        copy_tensor(target, source, what=what)
        stale.copy_(before)

    return copy


def held(engine: TorchRolloutEngine) -> Mapping[str, Tensor]:
    return model_tensors(engine._model)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "part"),
    [(EMBEDDING, slice(None)), (EXPERT, slice(None)), (QUERY, slice(0, 8))],
    ids=["tied head", "expert", "half of a matrix"],
)
def test_stale_tensor_is_named_at_the_first_install(
    versions: Versions, monkeypatch: pytest.MonkeyPatch, name: str, part: slice
) -> None:
    folder, first, second = versions
    old, new = (map_weights(each)[name][part] for each in (first, second))
    assert (old != new).any() and second.manifest.probe is not None
    engine = TorchRolloutEngine(folder, max_batch=2, device="cpu", kv_tokens=256)
    engine.install(first)
    with monkeypatch.context() as planted:
        planted.setattr(installing, "copy_tensor", leaving_out(held(engine)[name][part]))
        with pytest.raises(OtherWeights, match=rf"version 1: .* 1 of \d+ tensors have other bits: {name}\."):
            engine.install(second)
    compare(second.manifest, engine.probe(second.manifest.probe.token_ids))  # too small for the probe to detect
    engine.install(second)


@pytest.mark.parametrize("name", [EMBEDDING, QUERY])
def test_tensor_one_bit_behind_is_named(nudged: Versions, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    folder, first, second = nudged
    engine = TorchRolloutEngine(folder, max_batch=2, device="cpu", kv_tokens=256)
    engine.install(first)
    with monkeypatch.context() as planted:
        planted.setattr(installing, "copy_tensor", leaving_out(held(engine)[name]))
        with pytest.raises(OtherWeights, match=rf"version 1: .* 1 of \d+ tensors have other bits: {name}\."):
            engine.install(second)
    engine.install(second)


def test_bytes_that_changed_before_they_arrived_are_found(nudged: Versions) -> None:
    folder, _, version = nudged
    tensors = {name: tensor.clone() for name, tensor in map_weights(version).items()}
    tensors[QUERY][3, 3] += 1.0
    torn = replace(version, buffer=pack_weights(tensors, weights=version.manifest.weights).buffer)
    engine = TorchRolloutEngine(folder, max_batch=2, device="cpu", kv_tokens=256, begins_empty=True)
    with pytest.raises(OtherWeights, match=QUERY):
        engine.install(torn)


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, WeightVersion]:
    folder = save_qwen(tmp_path_factory.mktemp("dense"), "qwen3", tie_word_embeddings=True, dtype="bfloat16")
    _, version = _trained(folder, TrainerSpec(lora_rank=4, compute_dtype="bfloat16"))
    return folder, version


def test_stale_matrix_under_an_adapter_is_named(
    adapters: tuple[Path, WeightVersion], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, version = adapters
    engine = TorchRolloutEngine(folder, max_batch=2, device="cpu", kv_tokens=256)
    held(engine)[QUERY][0, 0] += 1.0
    with monkeypatch.context() as planted:
        planted.setattr(installing, "copy_tensor", leaving_out(held(engine)[QUERY]))
        with pytest.raises(OtherWeights, match=QUERY):
            engine.install(version)
    engine.install(version)


def test_adapter_that_changed_on_its_way_changes_nothing(adapters: tuple[Path, WeightVersion]) -> None:
    folder, version = adapters
    engine = TorchRolloutEngine(folder, max_batch=2, device="cpu", kv_tokens=256)
    before = sums_of(held(engine).values())
    torn = bytearray(version.buffer)
    torn[2] ^= 1
    with pytest.raises(OtherWeights, match="the bytes that arrived are not"):
        engine.install(replace(version, buffer=memoryview(torn)))
    assert sums_of(held(engine).values()) == before
