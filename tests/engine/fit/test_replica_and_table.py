"""A replica's terms are its engine's, and the table has a cell for every question."""

import json
from pathlib import Path

import pytest
import torch

from engine.fit import replica
from engine.fit.durations.step import DEVICES, forward_flops, least_generation_s, least_training_s, step_work
from engine.fit.known_models import KNOWN_CONFIGS, known_shape
from engine.fit.need import GB
from engine.fit.plan import CHUNK_LOGITS_ON_A_CPU, CHUNK_TOKENS, longest_tokens
from engine.fit.replica import (
    DRAWN_AT_ONCE,
    FIRST_TOKENS_OF_A_ROW,
    READ_IN_TOKENS,
    STRETCH_TOKENS,
    ReplicaPlan,
    backed_tokens,
    kv_bytes_of_token,
    parts_bytes,
    replica_need,
)
from engine.fit.table import LENGTHS, NUM_DEVICES, first_that_fits, table_lines
from engine.inference.block_manager import BLOCK_TOKENS, BlockManager, BlockTable
from engine.inference.page_store import PageStore
from engine.inference.rows.page_parts import STRETCH, parts_of
from engine.inference.sampling import _STRETCH
from engine.inference.torch_engine import FIRST_BLOCKS_PER_ROW, PREFILL_TOKENS
from engine.inference.vllm.start import GPU_BLOCK_TOKENS, MAX_READ_IN, _kv_space
from engine.training.step.head import LOGITS_ON_A_CPU, ROWS_ON_A_GPU
from tests.engine.fit.shapes_of_models import decoder_config, job


def test_defaults_of_engines_and_trainers_are_counted() -> None:
    assert READ_IN_TOKENS == {"torch": PREFILL_TOKENS, "vllm": MAX_READ_IN}
    assert FIRST_TOKENS_OF_A_ROW == FIRST_BLOCKS_PER_ROW * BLOCK_TOKENS
    assert (BLOCK_TOKENS, STRETCH, _STRETCH) == (replica.BLOCK_TOKENS, STRETCH_TOKENS, DRAWN_AT_ONCE)
    assert (CHUNK_TOKENS, CHUNK_LOGITS_ON_A_CPU) == (ROWS_ON_A_GPU, LOGITS_ON_A_CPU)


def test_a_token_takes_of_the_cache_what_the_engines_pages_take() -> None:
    shape = known_shape("Qwen3-8B")
    store = PageStore(decoder_config(shape), BlockManager(4, num_backed=0, version=0), device="cpu")
    assert kv_bytes_of_token(shape) == store.num_bytes(1)


@pytest.mark.parametrize("longest", [300, 513, 8_192])
def test_stretches_count_as_the_kernel_allocates(longest: int) -> None:
    shape, rows = known_shape("Qwen3-8B"), 6
    plan = ReplicaPlan.of_spec(job(rollout={"max_new_tokens": longest - 1, "max_batch": rows}), shape, prompt_tokens=1)
    num_blocks = 1 << (-(-longest // BLOCK_TOKENS) - 1).bit_length()  # as tables of rows grow
    q_BHE = torch.empty(rows, shape.num_heads, shape.head_dim, dtype=torch.bfloat16)
    parts = parts_of(q_BHE, torch.empty(rows, num_blocks, dtype=torch.int32), BLOCK_TOKENS)
    assert parts_bytes(shape, plan) == parts.parts_BHSE.nbytes + parts.sums_BHS.nbytes


def test_default_cache_holds_the_longest_in_every_slot() -> None:
    shape = known_shape("Qwen3-8B")
    spec = job(rollout={"max_new_tokens": 3_000, "max_batch": 10})
    assert ReplicaPlan.of_spec(spec, shape, prompt_tokens=96).kv_tokens == 30_960
    given = job(rollout={"max_new_tokens": 3_000, "max_batch": 10, "kv_tokens": 5_000})
    assert ReplicaPlan.of_spec(given, shape).kv_tokens == 5_000


def test_cut_held_out_answers_sort_a_vocabulary_too() -> None:
    shape = known_shape("Qwen3-8B")
    for evaluation, cuts in (({}, False), ({"top_p": 0.95}, True), ({"temperature": 0}, False)):
        assert ReplicaPlan.of_spec(job(evaluation=evaluation), shape).cuts is cuts


def test_vllms_cache_has_its_set_blocks_or_room_for_one(tmp_path: Path) -> None:
    config = KNOWN_CONFIGS["Qwen3-8B"]
    (tmp_path / "config.json").write_text(json.dumps(config))

    def counted(kv_tokens: int) -> int:
        return ReplicaPlan.of_spec(
            job(rollout={"engine": "vllm", "kv_tokens": kv_tokens}), known_shape("Qwen3-8B")
        ).kv_tokens

    told, untold = (_kv_space(tmp_path, max_batch=64, device="cuda", kv_tokens=each) for each in (5_000, 0))
    assert counted(5_000) == told["num_gpu_blocks_override"] * told["block_size"]
    assert untold == {"max_model_len": config["max_position_embeddings"]}
    assert counted(0) == config["max_position_embeddings"] + GPU_BLOCK_TOKENS, "and one block of its own"


def test_vllms_own_cache_does_not_slow_the_estimate() -> None:
    shape = known_shape("Qwen3-8B")
    torch_bytes, vllm_bytes = (
        step_work(job(rollout={"engine": each}), shape).generation_bytes for each in ("torch", "vllm")
    )
    assert vllm_bytes == torch_bytes


@pytest.mark.parametrize("longest", [10, 64, 65, 1_000, 3_096])
def test_growing_cache_doubles_to_its_full_size(longest: int) -> None:
    """And while it does, the half from which it grew is there still."""
    shape, rows = known_shape("Qwen3-8B"), 10
    spec = job(rollout={"max_new_tokens": longest - 1, "max_batch": rows})
    plan = ReplicaPlan.of_spec(spec, shape, prompt_tokens=1)
    blocks = BlockManager(rows * 2_561, num_backed=rows * FIRST_BLOCKS_PER_ROW, version=0)
    for row in range(rows):
        table = BlockTable(tokens=[row] * longest)
        assert blocks.can_allocate(table)
        blocks.allocate(table)
    assert backed_tokens(shape, plan) == blocks.num_backed * BLOCK_TOKENS
    growing = next(phase for phase in replica_need(shape, plan).phases if "grows" in phase.what)
    assert growing.num_bytes == blocks.num_backed * BLOCK_TOKENS * 3 // 2 * kv_bytes_of_token(shape)


def test_a_sequence_is_never_longer_than_the_model_has_positions() -> None:
    shape = known_shape("Qwen3-8B")
    assert longest_tokens(job(rollout={"max_new_tokens": 131_072}), shape) == shape.max_positions
    assert longest_tokens(job(rollout={"max_new_tokens": 100}), shape, prompt_tokens=50) == 150


def test_a_forward_pass_has_the_arithmetic_of_its_products() -> None:
    """torch's own counter, on a layer without memory."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    from engine.models.attention import PackedAttention
    from engine.models.decoder import Decoder
    from engine.models.packing import lay_out, pack

    shape, num_tokens = known_shape("Qwen3-0.6B"), 512
    with FakeTensorMode():
        model = Decoder(decoder_config(shape), torch.bfloat16)
        packed = pack([[0] * num_tokens], lay_out([num_tokens], max_tokens=num_tokens), "cpu")
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model.logits(model(packed.ids_T, packed.positions_T, PackedAttention(packed)))
    ours = forward_flops(shape, num_tokens=num_tokens, length=num_tokens)
    assert ours == pytest.approx(counter.get_total_flops(), rel=0.05)


def test_a_step_is_shorter_on_more_and_on_faster_devices() -> None:
    shape = known_shape("Qwen3-8B")
    work = step_work(job(rollout={"max_new_tokens": 4_096}), shape)
    slow, *_, fast = DEVICES
    assert least_training_s(work, slow, num_devices=2) == least_training_s(work, slow, num_devices=1) / 2
    assert least_training_s(work, fast, num_devices=1) < least_training_s(work, slow, num_devices=1)
    assert least_generation_s(work, fast, num_replicas=4) < least_generation_s(work, slow, num_replicas=4)


def test_the_table_has_a_row_for_each_model_and_cluster() -> None:
    head, *rows = table_lines()
    assert len(rows) == len(KNOWN_CONFIGS) * len(NUM_DEVICES)
    assert head.count("80 GB") == head.count("141 GB") == len(LENGTHS)


def test_8b_trains_on_eight_80_gb_devices_at_32k_tokens() -> None:
    found = first_that_fits(known_shape("Qwen3-8B"), num_devices=8, device_bytes=80 * GB, length=32_768)
    assert found is not None
    plan, needed = found
    assert plan.sequence_parallel == 1 and plan.moments == "float32" and needed < 80 * GB
