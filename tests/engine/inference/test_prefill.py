"""Chunks packed into one call of a GPU's kernel attend to the same tokens as chunks in rectangles."""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from engine.inference.block_manager import BlockTable
from engine.inference.page_store import PageStore
from engine.inference.prefill import PackedChunks, RectangularChunks, chunk_batch
from engine.inference.scheduler import Chunk
from engine.inference.torch_engine import TorchRolloutEngine
from tests.engine.inference.rollout_engine_builders import Reference, ask, finish, make_family, make_model

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPTS = [(5, 6, 7), (8,), tuple(range(4, 60)), (20,) * 19, tuple(range(4, 64)) * 2]


def sequence_by_sequence(
    q_THE: Tensor, k_cKE: Tensor, v_cKE: Tensor, starts: Tensor, context_starts: Tensor, *longest: int, **asked: Any
) -> Tensor:
    """The documented behaviour of `varlen_attn`: the last query sees all keys."""
    assert starts.dtype == context_starts.dtype == torch.int32
    assert asked["enable_gqa"] == (q_THE.shape[1] != k_cKE.shape[1])
    bounds, mixed = list(zip(starts.tolist(), context_starts.tolist(), strict=True)), []
    assert longest == tuple(max(end - start for start, end in pairwise(each)) for each in zip(*bounds, strict=True))
    for (start, context_start), (end, context_end) in pairwise(bounds):
        width, length = end - start, context_end - context_start
        back_WL = torch.arange(length - width, length).unsqueeze(1) - torch.arange(length)
        before, after = asked["window_size"]
        seen_WL = (back_WL >= -after) & ((back_WL <= before) | (before < 0))
        q, k, v = (
            part.transpose(0, 1).unsqueeze(0)
            for part in (q_THE[start:end], k_cKE[context_start:context_end], v_cKE[context_start:context_end])
        )
        out = functional.scaled_dot_product_attention(q, k, v, attn_mask=seen_WL, enable_gqa=True)
        mixed.append(out.squeeze(0).transpose(0, 1))
    return torch.cat(mixed)


@pytest.fixture(scope="module", params=["qwen3", "qwen3-windows"])
def theirs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    folder = tmp_path_factory.mktemp("model")
    return make_model(folder, layout="qwen3") if request.param == "qwen3" else make_family(folder, request.param)


@pytest.mark.long_except("qwen3-24", "qwen3-1000", "qwen3-windows-24", "qwen3-windows-1000")
@pytest.mark.parametrize("prefill_tokens", [16, 24, 1_000])
def test_packed_chunks_lead_to_the_same_tokens(
    theirs: Reference, prefill_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt in one chunk or in many, next to whole prompts, after shared blocks."""
    made: list[PackedChunks] = []

    def packed(chunks: list[Chunk], store: PageStore, *, max_positions: int, device: str) -> PackedChunks:
        made.append(PackedChunks(chunks, store, device=device))
        return made[-1]

    monkeypatch.setattr("engine.inference.torch_engine.chunk_batch", packed)
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", sequence_by_sequence)
    engine = TorchRolloutEngine(theirs.folder, max_batch=8, device="cpu", layout="paged", prefill_tokens=prefill_tokens)
    for turn in range(2):  # the second time much is in the cache
        engine.submit([ask(str(i), (*prompt, *(9,) * turn)) for i, prompt in enumerate(PROMPTS)])
        outputs = finish(engine)
        for i, prompt in enumerate(PROMPTS):
            assert outputs[str(i)].token_ids == theirs.greedy((*prompt, *(9,) * turn), 24)
    assert made


class PagesOnAGpu:
    """The pages of a fake GPU, on which PageStore itself cannot allocate memory."""

    dtype, windows = torch.bfloat16, (None, 7)

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        k_XKE, v_XKE = (torch.empty(128, 2, 32, dtype=self.dtype, device="cuda") for _ in range(2))
        return k_XKE, v_XKE

    def slots(self, table: BlockTable, start: int, end: int) -> list[int]:
        return [table.blocks[at // 16] * 16 + at % 16 for at in range(start, end)]

    def slot_range(self, table: BlockTable, start: int, end: int) -> npt.NDArray[np.int64]:
        return np.asarray(self.slots(table, start, end), dtype=np.int64)

    def on_device(self, slots: list[int]) -> Tensor:
        return torch.tensor(slots, device="cuda")


def two_chunks() -> list[Chunk]:
    """A later chunk of a sequence, and a whole sequence."""
    tables = [BlockTable(tokens=list(range(40)), blocks=[2, 0, 5]), BlockTable(tokens=list(range(20)), blocks=[1, 3])]
    lives: list[Any] = [SimpleNamespace(table=each, tokens=each.tokens) for each in tables]
    return [Chunk(live=lives[0], start=16, end=40), Chunk(live=lives[1], start=0, end=19)]


def test_torchs_kernel_accepts_the_arguments() -> None:
    """On a fake GPU: names, types and shapes are checked, nothing is computed."""
    store: Any = PagesOnAGpu()
    with FakeTensorMode():
        chunks = chunk_batch(two_chunks(), store, max_positions=256, device="cuda")
        assert isinstance(chunks, PackedChunks) and chunks.ids_T.shape == chunks.slots_n.shape == (43,)
        parts = [torch.empty(43, heads, 32, dtype=torch.bfloat16, device="cuda") for heads in (4, 2, 2)]
        for layer in (0, 1):
            mixed_TA = chunks(layer, *parts)
            assert (mixed_TA.shape, mixed_TA.dtype) == ((43, 4 * 32), torch.bfloat16)


def test_slots_of_a_long_context_are_those_of_each_token(theirs: Reference) -> None:
    store = TorchRolloutEngine(theirs.folder, max_batch=1, device="cpu")._store
    table = BlockTable(tokens=[0] * 70, blocks=[4, 0, 9, 2, 7])
    for start, end in ((0, 70), (0, 16), (5, 6), (15, 33), (16, 48), (69, 70)):
        assert store.slot_range(table, start, end).tolist() == store.slots(table, start, end)


@pytest.mark.parametrize(("device", "dtype"), [("cpu", torch.bfloat16), ("cuda", torch.float32)])
def test_in_float32_and_on_a_cpu_chunks_are_rectangles(device: str, dtype: torch.dtype) -> None:
    store: Any = PagesOnAGpu()
    store.dtype = dtype
    with FakeTensorMode():
        chunks = chunk_batch(two_chunks(), store, max_positions=256, device=device)
    assert isinstance(chunks, RectangularChunks)
