"""Starts a vLLM engine for rollouts: in this process, stepped by the caller, without logs.

vLLM's core runs in this process and not in one of its own: a step is then exactly one step, weights are swapped between
two steps, the core ends with this process, and it starts sooner. The worker of a model on one device runs here too;
with several devices each has a worker process.

Invariants:
- nothing is downloaded, and no usage is reported;
- weights keep the folder's dtype: vLLM would convert float32 to half precision.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch._dynamo
from safetensors import safe_open

from engine.inference.vllm.interpreter import STARTED_WITH
from engine.inference.vllm.worker_progress import listen_to_workers
from engine.models.loading import weight_files
from engine.spec.slots import room_of_rank
from engine.weights.low_rank import TARGETS

ENVIRONMENT: Final = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_HOST_IP": "127.0.0.1",  # otherwise vLLM finds the machine's address through one outside
}
WORKERS_ON_A_CPU: Final = {**STARTED_WITH, "TORCHDYNAMO_DISABLE": "1"}  # as below
NUM_EXPERTS: Final = ("num_experts", "num_local_experts", "n_routed_experts")  # names in the families' configs
CPU_BLOCK_TOKENS: Final = 32  # the smallest that its CPU kernels take: groups share prompts by whole blocks
GPU_BLOCK_TOKENS: Final = 16  # vLLM's default
CPU_KV_BYTES: Final = 4 * 1024**3  # the cache's limit without `kv_tokens`, as a machine has other replicas too
MAX_READ_IN: Final = 2_048  # tokens of one step: vLLM's default, which memory estimates rely on
DTYPES: Final = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """One of vLLM's two model runners, with our sampling as a logits processor of its interface."""

    is_v2: bool
    draw: str
    is_ahead: bool
    """Asynchronous scheduling: the next step begins before the host has the tokens of this one."""


V1: Final = Runner(is_v2=False, draw="engine.inference.vllm.sampler:SeededDraw", is_ahead=False)
V2: Final = Runner(is_v2=True, draw="engine.inference.vllm.slot_draw:SlotDraw", is_ahead=True)


def runner_on(device: str) -> Runner:
    """V1 on a CPU: V2 needs Triton's kernels, and Triton has none for CPUs."""
    return V1 if device == "cpu" else V2


def notes_routes(folder: Path, device: str) -> bool:
    """True for mixtures whose routes a trainer can replay, if the runner can record them."""
    return runner_on(device).is_v2 and _read_config(folder).get("model_type") == "qwen3_moe"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterRoom:
    """Room for adapters in addition to the weights."""

    num: int = 0
    rank: int = 1
    """The largest rank."""


NO_ADAPTERS: Final = AdapterRoom()


def start_vllm(folder: Path, **given: Any) -> Any:
    """A `QuietEngine` with these arguments."""
    arguments = engine_arguments(folder, **given)
    if arguments.tensor_parallel_size > 1:
        listen_to_workers()
    from engine.inference.vllm.front import QuietEngine

    return QuietEngine.from_engine_args(arguments)


def engine_arguments(
    folder: Path,
    *,
    max_batch: int,
    device: str,
    kv_tokens: int,
    num_devices: int = 1,
    begins_empty: bool = False,
    adapters: AdapterRoom = NO_ADAPTERS,
) -> Any:
    """Also sets the environment variables that vLLM needs. `kv_tokens` 0: on a GPU all free memory, on a CPU room for
    `max_batch` sequences of any length, up to `CPU_KV_BYTES`."""
    runner = runner_on(device)
    os.environ.update(ENVIRONMENT)
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = str(int(runner.is_v2))
    if device == "cpu":
        torch._dynamo.config.disable = True  # it would compile a small function of vLLM's sampler for seconds
        if num_devices > 1:
            os.environ.update({**WORKERS_ON_A_CPU, **os.environ})
    from vllm.config import KVTransferConfig, WeightTransferConfig
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform

    if current_platform.is_cpu() != (device == "cpu"):
        raise ValueError(f"device: this vLLM is built for {current_platform.device_type}, got {device!r}")
    config = _read_config(folder)
    return EngineArgs(
        model=str(folder),
        dtype=_dtype(config),
        load_format="dummy" if begins_empty else "auto",
        max_num_seqs=max_batch,
        max_num_batched_tokens=max(MAX_READ_IN, max_batch),
        enforce_eager=device == "cpu",  # on a GPU a graph for each batch size pays off
        use_tqdm_on_load=False,
        enable_prefix_caching=True,
        async_scheduling=runner.is_ahead,
        enable_return_routed_experts=notes_routes(folder, device),
        skip_tokenizer_init=True,
        generation_config="vllm",  # not the folder's: sampling parameters are the request's
        logprobs_mode="processed_logits",
        logits_processors=[runner.draw],
        worker_extension_cls="engine.inference.vllm.worker.RolloutWorker",
        weight_transfer_config=WeightTransferConfig(backend="laminar"),  # worker.py registers it
        tensor_parallel_size=num_devices,
        distributed_executor_backend="mp" if num_devices > 1 else None,  # Ray's takes no CPU, so no test could run it
        # The CPU kernel for experts crashes if an expert is missing; without this option, experts' tensors are sharded.
        enable_expert_parallel=num_devices > 1 and device != "cpu" and any(config.get(name) for name in NUM_EXPERTS),
        kv_transfer_config=KVTransferConfig(
            kv_connector="PageConnector", kv_connector_module_path="engine.inference.vllm.kv", kv_role="kv_both"
        ),
        disable_log_stats=True,
        **_adapters(adapters),
        **_kv_space(folder, max_batch=max_batch, device=device, kv_tokens=kv_tokens, num_devices=num_devices),
    )


def _adapters(room: AdapterRoom) -> dict[str, Any]:
    if not room.num:
        return {}
    return {
        "enable_lora": True,
        "max_loras": room.num,
        "max_cpu_loras": room.num,
        "max_lora_rank": room_of_rank(room.rank),
        "lora_target_modules": list(TARGETS),  # otherwise the head gets an adapter too, with a product for every row
    }


def _dtype(config: dict[str, Any]) -> str:
    dtype = config.get("dtype") or config.get("torch_dtype") or "float32"
    if dtype not in DTYPES:
        raise ValueError(f"config.json: dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    return str(dtype)


def read_max_positions(folder: Path) -> int:
    return int(_read_config(folder).get("max_position_embeddings", 2048))


def read_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of all tensors in the folder, by name."""
    shapes: dict[str, tuple[int, ...]] = {}
    for file in weight_files(folder):
        with safe_open(file, framework="pt") as stored:
            shapes |= {name: tuple(stored.get_slice(name).get_shape()) for name in stored.keys()}  # noqa: SIM118
    return shapes


def _read_config(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return config


def _kv_space(folder: Path, *, max_batch: int, device: str, kv_tokens: int, num_devices: int = 1) -> dict[str, Any]:
    """The cache size of each worker, and the longest sequence, which must fit alone or vLLM refuses to start."""
    max_positions = read_max_positions(folder)
    if device != "cpu" and not kv_tokens:
        return {"max_model_len": max_positions}
    block_tokens = CPU_BLOCK_TOKENS if device == "cpu" else GPU_BLOCK_TOKENS
    block_bytes = block_tokens * _token_bytes(_read_config(folder), num_devices)
    blocks_of_one = -(-max_positions // block_tokens)
    affordable = max(CPU_KV_BYTES // block_bytes, blocks_of_one)
    num_blocks = -(-kv_tokens // block_tokens) or min(max_batch * blocks_of_one, affordable)
    space = {
        "block_size": block_tokens,
        "max_model_len": min(max_positions, num_blocks * block_tokens),
        "num_gpu_blocks_override": 1 + num_blocks,  # one is vLLM's own
    }
    return space | ({"kv_cache_memory_bytes": (1 + num_blocks) * block_bytes} if device == "cpu" else {})


def _token_bytes(config: dict[str, Any], num_devices: int) -> int:
    """Bytes of a token on one worker: workers share the heads, and several hold the same head if there are too few."""
    num_heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // num_heads
    kv_heads = config.get("num_key_value_heads") or num_heads
    itemsize = 4 if _dtype(config) == "float32" else 2
    return int(2 * config["num_hidden_layers"] * max(1, kv_heads // num_devices) * head_dim * itemsize)
