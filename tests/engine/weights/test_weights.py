"""Flat weight versions: bits survive, further training changes nothing, torn bytes are detected."""

import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from hashlib import sha256
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.models.loading import load_decoder, model_tensors
from engine.policy.lineage import WeightsId
from engine.weights.chunks import TornWeights, chunk_spans
from engine.weights.hashes import ArrivingHashes, hash_chunks, hash_of, hashed, verify_weights
from engine.weights.port import WeightVersion
from engine.weights.snapshot import ALIGNMENT, map_weights, pack_weights
from tests.engine.conftest import MakeLlama

DTYPES = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}


def hashed_version() -> WeightVersion:
    weights = pack_weights({"a": torch.arange(100.0)}, weights=WeightsId(0, 1))
    return replace(weights, manifest=hashed(weights.manifest, weights.buffer, chunk_bytes=128))


@given(
    st.lists(st.tuples(st.sampled_from(list(DTYPES)), st.lists(st.integers(0, 5), max_size=3)), max_size=6), st.data()
)
def test_every_bit_survives(layout: list[tuple[torch.dtype, list[int]]], data: st.DataObject) -> None:
    """NaN payloads, infinities and negative zeros too: the bits are random."""
    tensors: dict[str, torch.Tensor] = {}
    for index, (dtype, shape) in enumerate(layout):
        same_size = DTYPES[dtype]
        limits = torch.iinfo(same_size)
        count = int(torch.tensor(shape).prod())
        bits = data.draw(st.lists(st.integers(limits.min, limits.max), min_size=count, max_size=count))
        tensors[f"t{index}"] = torch.tensor(bits, dtype=same_size).view(shape).view(dtype)
    weights = pack_weights(tensors, weights=WeightsId(0, 3))
    mapped = map_weights(weights)
    assert mapped.keys() == tensors.keys()
    for name, tensor in tensors.items():
        same_size = DTYPES[tensor.dtype]
        assert mapped[name].shape == tensor.shape
        assert torch.equal(mapped[name].view(same_size), tensor.view(same_size))


def test_packing_copies_and_mapping_does_not() -> None:
    tensor = torch.arange(10.0)
    weights = pack_weights({"a": tensor, "b": tensor[:3]}, weights=WeightsId(0, 1))
    tensor.zero_()
    mapped = map_weights(weights)
    assert mapped["a"].tolist() == list(range(10))
    assert mapped["b"].data_ptr() - mapped["a"].data_ptr() == ALIGNMENT
    assert weights.buffer.readonly


def test_tied_weights_are_stored_once(make_llama: MakeLlama) -> None:
    sizes = {}
    for tied in (False, True):
        tensors = model_tensors(load_decoder(make_llama(tied=tied), device="cpu"))
        sizes[tied] = pack_weights(tensors, weights=WeightsId(0, 0)).manifest.num_bytes
    assert sizes[False] - sizes[True] == 40 * 32 * 4


def test_hashes_are_those_of_the_bytes() -> None:
    weights = hashed_version()
    content, manifest = bytes(weights.buffer), weights.manifest
    assert manifest.num_bytes == 448 and len(manifest.chunk_hashes) == 4
    assert manifest.identity == sha256("".join(manifest.chunk_hashes).encode()).hexdigest()
    for index, (start, end) in enumerate(chunk_spans(manifest.num_bytes, manifest.chunk_bytes)):
        assert manifest.chunk_hashes[index] == hash_of(content[start:end])
    assert manifest.chunk_hashes == hash_chunks(content, 128)


@given(st.integers(0, 200), st.integers(1, 50), st.data())
def test_hashes_of_arriving_bytes_equal_those_of_the_whole(
    num_bytes: int, chunk_bytes: int, data: st.DataObject
) -> None:
    """In any order of arrival, with some bytes present from the start."""
    content = data.draw(st.binary(min_size=num_bytes, max_size=num_bytes))
    cuts = sorted({0, num_bytes, *data.draw(st.lists(st.integers(0, num_bytes), max_size=8))})
    parts = data.draw(st.permutations(list(pairwise(cuts))))
    there = data.draw(st.integers(0, len(parts)))
    buffer = bytearray(num_bytes)
    for start, end in parts[:there]:
        buffer[start:end] = content[start:end]
    seen: dict[int, str] = {}
    with closing(ArrivingHashes(buffer, chunk_bytes, parts[there:], seen.__setitem__)) as hashes:
        for start, end in parts[there:]:
            buffer[start:end] = content[start:end]
            hashes.arrived(start, end)
        assert hashes.result() == hash_chunks(content, chunk_bytes) == tuple(seen[index] for index in sorted(seen))


@given(st.integers(0, 447), st.integers(1, 255))
def test_one_flipped_byte_is_noticed(position: int, flip: int) -> None:
    weights = hashed_version()
    torn = bytearray(weights.buffer)
    torn[position] ^= flip
    with pytest.raises(TornWeights):
        verify_weights(replace(weights, buffer=memoryview(torn)))
    pairs = zip(weights.manifest.chunk_hashes, hash_chunks(torn, 128), strict=True)
    assert [expected != found for expected, found in pairs] == [chunk == position // 128 for chunk in range(4)]


def test_a_short_buffer_is_noticed() -> None:
    weights = hashed_version()
    with pytest.raises(TornWeights, match="384 bytes"):
        verify_weights(replace(weights, buffer=weights.buffer[:384]))


def test_a_relay_needs_no_torch() -> None:
    script = "import engine.weights.hashes, sys; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout.strip() == "False"
