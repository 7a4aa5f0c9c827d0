"""A replica's step takes what is counted: the engine itself at true widths and a true vocabulary, prompts and answers.

Its pages of keys and values are none of torch's memory here: they are compared in test_replica_and_table.py."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from engine.fit.known_models import KNOWN_CONFIGS
from engine.fit.replica import (
    DRAWN,
    READ_IN,
    READ_ON,
    ReplicaPlan,
    installed_bytes,
    replica_need,
)
from engine.fit.shape import ModelShape
from engine.inference import torch_engine
from engine.inference.page_store import PageStore
from engine.inference.port import SamplingParams, SequenceRequest
from engine.inference.prefill import PackedChunks
from engine.inference.scheduler import Chunk
from engine.inference.torch_engine import TorchRolloutEngine
from engine.models.make_random import make_random
from tests.engine.fit.measured.adapters import RANK, random_adapter
from tests.engine.fit.measured.allocated import Allocated, record_function
from tests.engine.fit.measured.memory_of_a_pass import LiveBytes
from tests.engine.fit.shapes_of_models import job

pytestmark = pytest.mark.usefixtures("one_thread")

FEW_WORDS = {"vocab_size": 1_024}
NEW_TOKENS = 6


@pytest.fixture(autouse=True)
def as_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU may be faster in another type than a model is stored in; a GPU's products are in that one."""
    monkeypatch.setattr(torch_engine, "products_for", lambda config: None)


def taken_by_steps(folder: Path, *, rows: int, prompt_tokens: int, cuts: bool, by_onednn: bool = True) -> int:
    """At most, without weights and other memory from before. `by_onednn`: fast products, some of which take working
    memory that depends on the processor's instructions."""
    sampling: dict[str, Any] = {"top_p": 0.9, "top_k": 50} if cuts else {}
    with Allocated() as allocated:
        engine = TorchRolloutEngine(
            folder, max_batch=rows, device="cpu", kv_tokens=2 * rows * (prompt_tokens + 16), layout="paged"
        )
        requests = [
            SequenceRequest(
                sequence_id=str(row),
                prompt_ids=tuple(5 + (7 * place + 13 * row) % 900 for place in range(prompt_tokens)),
                sampling=SamplingParams(max_new_tokens=NEW_TOKENS, temperature=1.0, seed=row, **sampling),
            )
            for row in range(rows)
        ]
        engine.submit(requests)
        with torch.backends.mkldnn.flags(enabled=by_onednn), record_function("steps"):
            while engine.view().num_running or engine.view().num_waiting:
                engine.step()
    return allocated.growth_in("steps")


@pytest.mark.long
@pytest.mark.parametrize(
    ("phase", "name", "changed", "rows", "prompt_tokens", "cuts"),
    [
        (DRAWN, "Qwen3-0.6B", {}, 8, 30, False),
        (DRAWN, "Qwen3-0.6B", {"dtype": "float32"}, 8, 30, False),
        (DRAWN, "Qwen3-0.6B", {}, 8, 30, True),
        (READ_IN, "Qwen3-0.6B", FEW_WORDS, 4, 256, False),
        (READ_IN, "Qwen3-0.6B", {**FEW_WORDS, "dtype": "float32"}, 4, 256, False),
        (READ_IN, "Qwen3-8B", {**FEW_WORDS, "dtype": "float32"}, 4, 256, False),
        (READ_IN, "Qwen3-30B-A3B", {**FEW_WORDS, "num_experts": 16}, 4, 256, False),
    ],
    ids=[
        "words",
        "exact words",
        "words left out",
        "prompts",
        "exact prompts",
        "exact wide prompts",
        "prompts of a mixture",
    ],
)
def test_steps_take_at_most_their_count(
    tmp_path: Path, phase: str, name: str, changed: dict[str, Any], rows: int, prompt_tokens: int, cuts: bool
) -> None:
    config = {**KNOWN_CONFIGS[name], "num_hidden_layers": 1, **changed}
    make_random(tmp_path / "model", config)
    taken = taken_by_steps(tmp_path / "model", rows=rows, prompt_tokens=prompt_tokens, cuts=cuts, by_onednn=False)
    assert_counted(taken, config, phase, rows=rows, prompt_tokens=prompt_tokens, cuts=cuts)


@pytest.mark.long
def test_rows_history_counts_as_float32_on_a_gpu(tmp_path: Path) -> None:
    """There, what has a mask, and heads that share keys, is computed step by step."""
    config = {**KNOWN_CONFIGS["Qwen3-0.6B"], **FEW_WORDS, "num_hidden_layers": 1, "dtype": "float32"}
    make_random(tmp_path / "model", config)
    with sdpa_kernel(SDPBackend.MATH):
        taken = taken_by_steps(tmp_path / "model", rows=1, prompt_tokens=2_048, cuts=False)
    assert_counted(taken, config, READ_ON, rows=1, prompt_tokens=2_048, cuts=False)


@pytest.mark.long
def test_prefill_history_counts_as_in_a_gpus_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that computes nothing here, but takes the memory that it takes there."""

    def varlen_attn(q_THE: Tensor, *given: object, **named: object) -> Tensor:
        logarithms_HT = q_THE.new_empty(q_THE.shape[1::-1], dtype=torch.float32)
        return torch.zeros_like(q_THE, memory_format=torch.contiguous_format) + logarithms_HT.numel() * 0

    def packed(chunks: Sequence[Chunk], store: PageStore, *, max_positions: int, device: str) -> PackedChunks:
        return PackedChunks(chunks, store, device=device)

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", varlen_attn)
    monkeypatch.setattr(torch_engine, "chunk_batch", packed)
    config = {**KNOWN_CONFIGS["Qwen3-0.6B"], **FEW_WORDS, "num_hidden_layers": 1}
    make_random(tmp_path / "model", config)
    taken = taken_by_steps(tmp_path / "model", rows=1, prompt_tokens=8_000, cuts=False)
    assert_counted(taken, config, READ_ON, rows=1, prompt_tokens=8_000, cuts=False)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_an_adapter_is_added_to_one_matrix_after_the_other(tmp_path: Path, dtype: str) -> None:
    """On a CPU the matrix to which it is added lies in the folder's pages."""
    folder, config = tmp_path / "model", {**KNOWN_CONFIGS["Qwen3-0.6B"], **FEW_WORDS, "num_hidden_layers": 1}
    make_random(folder, {**config, "dtype": dtype})
    shape = ModelShape.of_config({**config, "dtype": dtype})
    engine, adapter = TorchRolloutEngine(folder, max_batch=1, device="cpu"), random_adapter(folder)
    with LiveBytes() as live:
        engine.install(adapter)
    taken = live.peak + shape.stored_bytes * shape.mlp_width * shape.width
    counted = installed_bytes(shape, ReplicaPlan.of_spec(job(trainer={"lora_rank": RANK}), shape))
    assert taken / 1.005 <= counted <= 1.25 * taken, f"{counted / taken:.3f} of {taken:,}"


def assert_counted(
    taken: int, config: dict[str, Any], phase: str, *, rows: int, prompt_tokens: int, cuts: bool
) -> None:
    """`phase`: the one that such prompts and words fill."""
    shape = ModelShape.of_config(config)
    rollout = {"max_batch": rows, "max_new_tokens": NEW_TOKENS, "kv_tokens": rows * 8_192}
    spec = job(rollout=rollout | ({"top_p": 0.9, "top_k": 50} if cuts else {}), schedule={"name": "sync"})
    need = replica_need(shape, ReplicaPlan.of_spec(spec, shape, prompt_tokens=prompt_tokens))
    counted = next(each.num_bytes for each in need.phases if each.what == phase)
    assert taken / 1.005 <= counted <= 1.25 * taken, f"{counted / taken:.3f} of {taken:,}"
