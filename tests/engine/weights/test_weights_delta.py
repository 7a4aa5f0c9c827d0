"""Deltas are lossless, whatever is lost, repeated or interrupted in transfer."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine.policy.lineage import WeightsId
from engine.weights.chunks import TornWeights
from engine.weights.delta import BLOCK_ELEMENTS, apply_delta, make_delta
from engine.weights.hashes import hash_chunks, hashed, identity_of, verify_weights
from engine.weights.port import TensorEntry, WeightDelta, WeightManifest, WeightVersion
from tests.bench.engine.relays.publisher import Weights

Bytes = NDArray[np.uint8]
SIZES = {"float32": 4, "bfloat16": 2, "float16": 2, "unknown": 1}


def layout(kinds: list[tuple[str, int]]) -> tuple[TensorEntry, ...]:
    entries: list[TensorEntry] = []
    offset = 0
    for index, (dtype, count) in enumerate(kinds):
        num_bytes = count * SIZES[dtype]
        entries.append(TensorEntry(name=f"t{index}", dtype=dtype, shape=(count,), offset=offset, num_bytes=num_bytes))
        offset += -(-num_bytes // 64) * 64
    return tuple(entries)


def version_of(number: int, content: Bytes, tensors: tuple[TensorEntry, ...]) -> WeightVersion:
    manifest = WeightManifest(
        weights=WeightsId(0, number),
        num_bytes=len(content),
        chunk_bytes=64,
        identity="",
        chunk_hashes=(),
        tensors=tensors,
    )
    buffer = memoryview(content.tobytes())
    return WeightVersion(manifest=hashed(manifest, buffer, chunk_bytes=64), buffer=buffer)


def updated(content: Bytes, seed: int, density: float) -> Bytes:
    """Changes some elements to random bits, NaNs, infinities and negative zeros included."""
    chance = np.random.default_rng(seed)
    is_hit = chance.random(len(content)) < density
    return np.where(is_hit, chance.integers(0, 256, len(content), dtype=np.uint8), content).astype(np.uint8)


KINDS = st.lists(st.tuples(st.sampled_from(list(SIZES)), st.integers(0, 900)), min_size=1, max_size=5)


@pytest.mark.long
@given(
    kinds=KINDS,
    seed=st.integers(0, 2**32 - 1),
    densities=st.lists(st.sampled_from([0.0, 0.0005, 0.01, 0.1, 1.0]), min_size=1, max_size=6),
    events=st.lists(st.sampled_from(["delta", "twice", "broken off", "anchor", "lost"]), min_size=6, max_size=6),
)
@example(kinds=[("bfloat16", 900)], seed=0, densities=[0.01] * 6, events=["delta", "lost", "twice"] * 2)
def test_state_survives_any_mix_of_deltas_drops_and_retries(
    kinds: list[tuple[str, int]], seed: int, densities: list[float], events: list[str]
) -> None:
    tensors = layout(kinds)
    num_bytes = tensors[-1].offset + -(-tensors[-1].num_bytes // 64) * 64
    versions = [version_of(0, updated(np.zeros(num_bytes, dtype=np.uint8), seed, 1.0), tensors)]
    for number, density in enumerate(densities, start=1):
        before = np.frombuffer(versions[-1].buffer, dtype=np.uint8)
        versions.append(version_of(number, updated(before, seed + number, density), tensors))
    held, state = 0, bytearray(versions[0].buffer)
    for number, event in zip(range(1, len(versions)), events, strict=False):
        delta = make_delta(versions[held], versions[number], chunk_bytes=64)
        if event == "lost":
            continue
        if delta is None or event == "anchor":
            state[:] = versions[number].buffer
        else:
            assert len(delta.buffer) < num_bytes
            receive(state, delta, event, versions[held])
        held = number
        assert identity(state) == versions[number].manifest.identity


def identity(state: bytearray) -> str:
    return identity_of(hash_chunks(state, 64))


def receive(state: bytearray, delta: WeightDelta, event: str, base: WeightVersion) -> None:
    assert delta.manifest.base_identity == identity(state) == base.manifest.identity
    if event == "broken off" and len(delta.buffer):
        with pytest.raises(TornWeights):
            apply_delta(delta.buffer[:-9], state)
    apply_delta(delta.buffer, state)
    if event == "twice":
        apply_delta(delta.buffer, state)


@pytest.mark.long
def test_a_delta_over_many_blocks_is_whole() -> None:
    count = BLOCK_ELEMENTS * 2 + 64
    tensors = layout([("bfloat16", count)])
    before = np.zeros(count, dtype=np.uint16)
    after = before.copy()
    after[[0, BLOCK_ELEMENTS - 1, BLOCK_ELEMENTS, count - 1]] = [1, 0x0100, 0xFFFF, 0x80]
    old, new = (version_of(at, each.view(np.uint8), tensors) for at, each in enumerate((before, after)))
    delta = make_delta(old, new, chunk_bytes=2**20)
    assert delta is not None and len(delta.buffer) < 250
    state = bytearray(old.buffer)
    apply_delta(delta.buffer, state)
    assert state == new.buffer


def test_another_layout_has_no_delta() -> None:
    content = np.zeros(640, dtype=np.uint8)
    old = version_of(0, content, layout([("bfloat16", 320)]))
    new = version_of(1, content, layout([("float32", 160)]))
    assert make_delta(old, new, chunk_bytes=64) is None


@given(st.binary(max_size=200), st.integers(0, 10_000), st.integers(0, 255))
def test_invalid_delta_is_refused_and_writes_nothing_outside(junk: bytes, position: int, value: int) -> None:
    tensors = layout([("bfloat16", 400)])
    before = np.zeros(832, dtype=np.uint8)
    delta = make_delta(version_of(0, before, tensors), version_of(1, updated(before, 1, 0.1), tensors), chunk_bytes=64)
    assert delta is not None
    torn = bytearray(delta.buffer)
    torn[position % len(torn)] = value
    for bad in (bytes(torn), junk, bytes(delta.buffer) + junk):
        try:
            apply_delta(bad, bytearray(before.tobytes()))
        except TornWeights:
            continue


@pytest.mark.long
def test_delta_of_a_small_update_is_a_twentieth_of_the_weights() -> None:
    weights = Weights(8 * 2**20)
    before = version_of(0, weights.bits.view(np.uint8), weights.tensors)
    weights.update()
    after = version_of(1, weights.bits.view(np.uint8), weights.tensors)
    delta = make_delta(before, after, chunk_bytes=2**20)
    assert delta is not None and len(delta.buffer) <= 0.05 * len(before.buffer)
    assert delta.manifest.result_identity == after.manifest.identity
    state = bytearray(before.buffer)
    apply_delta(delta.buffer, state)
    verify_weights(WeightVersion(manifest=after.manifest, buffer=memoryview(state)))


def test_deltas_need_no_torch() -> None:
    script = "import engine.weights.delta, sys; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout.strip() == "False"
