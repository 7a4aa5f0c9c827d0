"""The memory of vLLM's worker matches the counts of the fit module, at real widths and a real vocabulary.

On a CPU's vLLM. Its layers are those of a GPU, but three kernels consist of several operations here: rotary positions
and silu with product, which are counted that way, and norms, in float32. So the prompts avoid shapes in which norms
need the most memory.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.experts.triton_moe import TritonExperts
from vllm.model_executor.model_loader import base_loader

from engine.fit.known_models import KNOWN_CONFIGS
from engine.fit.replica import (
    DRAWN,
    INSTALLED,
    READ_IN,
    ReplicaPlan,
    experts_bytes,
    held_bytes,
    installed_bytes,
    replica_need,
)
from engine.fit.shape import ModelShape
from engine.inference.port import SamplingParams, SequenceRequest
from engine.inference.vllm.engine import VllmRolloutEngine
from engine.inference.vllm.start import NO_ADAPTERS, AdapterRoom
from engine.models.loading import load_decoder, model_tensors
from engine.models.make_random import make_random
from engine.policy.lineage import WeightsId
from engine.spec.job import JobSpec
from engine.weights.snapshot import pack_weights
from tests.engine.fit.measured.adapters import RANK, random_adapter
from tests.engine.fit.measured.allocated import Allocated, record_function
from tests.engine.fit.measured.memory_of_a_pass import LiveBytes
from tests.engine.fit.shapes_of_models import job

FEW_WORDS = {"vocab_size": 1_024}
ROWS, POSITIONS, NEW_TOKENS = 8, 1_024, 4
MERGED_RANK = 1_024  # above the largest rank of vLLM's adapters


class Replica:
    """An engine with a known model's widths, two layers and random weights."""

    def __init__(self, folder: Path, name: str, changed: dict[str, Any], adapters: AdapterRoom = NO_ADAPTERS) -> None:
        known = {**KNOWN_CONFIGS[name], "architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 2}
        config = {**known, "max_position_embeddings": POSITIONS, **changed}
        make_random(folder, config)
        self.folder, self.shape = folder, ModelShape.of_config(config)
        self.engine = VllmRolloutEngine(
            folder, max_batch=ROWS, device="cpu", kv_tokens=ROWS * POSITIONS, adapters=adapters
        )
        self._num_batches = 0

    @property
    def cache_bytes(self) -> int:
        num_blocks: int = self.engine._llm.vllm_config.cache_config.num_gpu_blocks
        return num_blocks * self.engine._kv_block_bytes

    def counted_always(self, *terms: str) -> int:
        need = replica_need(self.shape, ReplicaPlan.of_spec(_spec(), self.shape))
        return sum(term.num_bytes for term in need.always if term.what in terms)

    def counted(self, phase: str, **rollout: Any) -> int:
        need = replica_need(self.shape, ReplicaPlan.of_spec(_spec(**rollout), self.shape))
        return next(each.num_bytes for each in need.phases if each.what == phase)

    def answer(self, *, prompt_tokens: int, **sampling: Any) -> None:
        """Runs a batch of new prompts, which no cache knows."""
        self._num_batches += 1
        self.engine.submit(
            [
                SequenceRequest(
                    sequence_id=f"{self._num_batches} {row}",
                    prompt_ids=tuple(5 + (7 * at + 13 * row + self._num_batches) % 900 for at in range(prompt_tokens)),
                    sampling=SamplingParams(max_new_tokens=NEW_TOKENS, temperature=1.0, seed=row, **sampling),
                )
                for row in range(ROWS)
            ]
        )
        while self.engine.view().num_running or self.engine.view().num_waiting:
            self.engine.step()


def _spec(*, lora_rank: int = 0, **rollout: Any) -> JobSpec:
    settings = {"engine": "vllm", "max_batch": ROWS, "kv_tokens": ROWS * POSITIONS, **rollout}
    return job(rollout=settings, trainer={"lora_rank": lora_rank})


MakeReplica = Callable[..., Replica]


@pytest.fixture(scope="session")
def make_replica(tmp_path_factory: pytest.TempPathFactory) -> MakeReplica:
    """Keeps all replicas to the end: the first that ends destroys vLLM's process groups."""
    replicas: dict[str, Replica] = {}

    def make(name: str, *, adapters: AdapterRoom = NO_ADAPTERS, **changed: Any) -> Replica:
        key = f"{name} {changed} {adapters}"
        if key not in replicas:
            replicas[key] = Replica(tmp_path_factory.mktemp("replica"), name, changed, adapters)
        return replicas[key]

    return make


def growth(work: Callable[[], None]) -> int:
    with Allocated() as allocated, record_function("work"):
        work()
    return allocated.growth_in("work")


def assert_counted(counted: int, used: int) -> None:
    assert used / 1.005 <= counted <= 1.25 * used, f"{counted / used:.3f} of {used:,}"


@pytest.mark.parametrize("cuts", [{}, {"top_p": 0.9, "top_k": 50}], ids=["all words", "words left out"])
def test_sampling_uses_the_counted_memory(make_replica: MakeReplica, cuts: dict[str, Any]) -> None:
    replica = make_replica("Qwen3-0.6B")
    used = growth(lambda: replica.answer(prompt_tokens=8, **cuts))
    assert_counted(replica.counted(DRAWN, **cuts), used)


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("Qwen3-8B", {"num_hidden_layers": 1}),
        ("Qwen3-0.6B", {"dtype": "float32"}),
        ("Qwen3-0.6B", {"dtype": "float32", "intermediate_size": 512}),
    ],
    ids=["8B", "0.6B, exact", "0.6B, most of it attention"],
)
def test_prefill_uses_the_counted_memory(make_replica: MakeReplica, name: str, changed: dict[str, Any]) -> None:
    replica = make_replica(name, **FEW_WORDS, **changed)
    used = growth(lambda: replica.answer(prompt_tokens=300))
    assert_counted(replica.counted(READ_IN), used)


def test_version_is_installed_module_by_module(make_replica: MakeReplica) -> None:
    replica = make_replica("Qwen3-0.6B")
    weights = pack_weights(model_tensors(load_decoder(replica.folder, device="cpu")), weights=WeightsId(0, 1))
    assert_counted(replica.counted(INSTALLED), growth(lambda: replica.engine.install(weights)))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_adapter_is_merged_before_its_module_is_reloaded(make_replica: MakeReplica, dtype: str) -> None:
    """On a CPU the matrix that it is added to lies in the pages of the model's files."""
    replica = make_replica("Qwen3-0.6B", **FEW_WORDS, dtype=dtype)
    adapter, shape = random_adapter(replica.folder), replica.shape
    with LiveBytes() as live:
        replica.engine.install(adapter)
    used = live.peak + shape.stored_bytes * shape.mlp_width * shape.width
    assert_counted(installed_bytes(shape, ReplicaPlan.of_spec(_spec(lora_rank=MERGED_RANK), shape)), used)


def test_adapters_fit_the_counted_memory_next_to_the_base(make_replica: MakeReplica) -> None:
    replica = make_replica("Qwen3-0.6B", **FEW_WORDS, adapters=AdapterRoom(num=2, rank=RANK))
    (used,) = replica.engine._llm.collective_rpc(_adapter_bytes)
    plan = ReplicaPlan.of_spec(_spec(lora_rank=RANK, weight_slots=2), replica.shape)
    of_base = replace(plan, adapter_rank=0, weight_slots=1)
    assert used == held_bytes(replica.shape, plan) - held_bytes(replica.shape, of_base)


def _adapter_bytes(worker: Any) -> int:
    modules = worker.model_runner.lora_manager._adapter_manager.modules.values()
    return sum(room.nbytes for each in modules for room in (*each.lora_a_stacked, *each.lora_b_stacked))


def test_kv_cache_has_the_counted_pages(make_replica: MakeReplica) -> None:
    replica = make_replica("Qwen3-0.6B")
    assert_counted(replica.counted_always("KV cache"), replica.cache_bytes)


def test_weights_and_position_tables_are_the_rest_of_memory(
    make_replica: MakeReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured as the model is built, before a CPU's kernels pack weights in untracked memory."""
    make_model = base_loader.initialize_model

    def recorded(**options: Any) -> Any:
        with record_function("making"):
            return make_model(**options)

    monkeypatch.setattr(base_loader, "initialize_model", recorded)
    with Allocated() as allocated:
        replica = make_replica("Qwen3-0.6B", **FEW_WORDS, num_hidden_layers=3)
    assert_counted(replica.counted_always("weights", "rotary tables"), allocated.left_by("making"))


@pytest.mark.parametrize("name", [name for name in KNOWN_CONFIGS if "A3B" in name])
def test_experts_fit_the_workspace_vllm_reserves_on_a_gpu(name: str) -> None:
    """By vLLM's own numbers, since a CPU uses other kernels."""
    shape = ModelShape.of_config(KNOWN_CONFIGS[name])
    plan = ReplicaPlan.of_spec(job(rollout={"engine": "vllm"}), shape)
    experts: Any = SimpleNamespace(adjust_N_for_activation=lambda width, _: width // 2)
    *rooms, _ = TritonExperts.workspace_shapes(
        experts,
        plan.read_in_tokens,
        2 * shape.expert_width,
        shape.width,
        shape.experts_per_token,
        shape.num_experts,
        shape.num_experts,
        None,
        MoEActivation.SILU,
    )
    assert experts_bytes(shape, plan) == shape.stored_bytes * sum(map(math.prod, rooms))
