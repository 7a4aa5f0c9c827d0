"""A vLLM engine for rollouts: in this process, stepped by the caller, quiet.

vLLM's core runs here and not in a process of its own: a step is then exactly one step, weights are swapped between
two of them, nothing of it outlives this process, and it starts sooner.

Invariants:
- nothing is downloaded and nothing is reported to anybody;
- weights are kept as the folder has them: vLLM would take half precision for float32.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch._dynamo
from safetensors import safe_open

from engine.models.loading import weight_files

ENVIRONMENT: Final = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_HOST_IP": "127.0.0.1",  # else it looks for the machine's own by way of an address outside
}
CPU_BLOCK_TOKENS: Final = 32  # the least that its CPU kernels take: groups share prompts by whole blocks
GPU_BLOCK_TOKENS: Final = 16  # vLLM's own choice
CPU_KV_BYTES: Final = 4 * 1024**3  # where nobody said how many tokens must fit: a machine has other replicas, too
MAX_READ_IN: Final = 2_048  # tokens of one step: its own choice where nobody says, and what is counted on
DTYPES: Final = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """Which of vLLM's two runs the model, with our draw as a processor of its own kind."""

    is_v2: bool
    draw: str
    is_ahead: bool
    """The next step is begun before the tokens of this one are known on the host: asynchronous scheduling."""


V1: Final = Runner(is_v2=False, draw="engine.inference.vllm.sampler:SeededDraw", is_ahead=False)
V2: Final = Runner(is_v2=True, draw="engine.inference.vllm.slot_draw:SlotDraw", is_ahead=True)


def runner_on(device: str) -> Runner:
    """V2's kernels are Triton's, which has none for a CPU."""
    return V1 if device == "cpu" else V2


def notes_routes(folder: Path, device: str) -> bool:
    """Of mixtures whose routes a trainer can choose again, where the runner can note them."""
    return runner_on(device).is_v2 and _read_config(folder).get("model_type") == "qwen3_moe"


def start_vllm(folder: Path, *, max_batch: int, device: str, kv_tokens: int) -> Any:
    """A `QuietEngine`. `kv_tokens` 0: so many that `max_batch` sequences of any length fit; on a GPU, what is free."""
    arguments = engine_arguments(folder, max_batch=max_batch, device=device, kv_tokens=kv_tokens)
    from engine.inference.vllm.front import QuietEngine

    return QuietEngine.from_engine_args(arguments)


def engine_arguments(folder: Path, *, max_batch: int, device: str, kv_tokens: int) -> Any:
    """With the environment that they need."""
    runner = runner_on(device)
    os.environ.update(ENVIRONMENT)
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = str(int(runner.is_v2))
    if device == "cpu":
        torch._dynamo.config.disable = True  # it would compile one small function of its sampler, for seconds
    from vllm.config import KVTransferConfig
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform

    if current_platform.is_cpu() != (device == "cpu"):
        raise ValueError(f"device: this vLLM is built for {current_platform.device_type}, got {device!r}")
    return EngineArgs(
        model=str(folder),
        dtype=_dtype(_read_config(folder)),
        max_num_seqs=max_batch,
        max_num_batched_tokens=max(MAX_READ_IN, max_batch),
        enforce_eager=device == "cpu",  # elsewhere a graph for each batch size pays
        use_tqdm_on_load=False,
        enable_prefix_caching=True,
        async_scheduling=runner.is_ahead,
        enable_return_routed_experts=notes_routes(folder, device),
        skip_tokenizer_init=True,
        generation_config="vllm",  # not the folder's: what to draw is the request's
        logprobs_mode="processed_logits",
        logits_processors=[runner.draw],
        worker_extension_cls="engine.inference.vllm.worker.RolloutWorker",
        kv_transfer_config=KVTransferConfig(
            kv_connector="PageConnector", kv_connector_module_path="engine.inference.vllm.kv", kv_role="kv_both"
        ),
        disable_log_stats=True,
        **_kv_space(folder, max_batch=max_batch, device=device, kv_tokens=kv_tokens),
    )


def _dtype(config: dict[str, Any]) -> str:
    dtype = config.get("dtype") or config.get("torch_dtype") or "float32"
    if dtype not in DTYPES:
        raise ValueError(f"config.json: dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    return str(dtype)


def read_max_positions(folder: Path) -> int:
    return int(_read_config(folder).get("max_position_embeddings", 2048))


def read_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Of every tensor in the folder, by its name there."""
    shapes: dict[str, tuple[int, ...]] = {}
    for file in weight_files(folder):
        with safe_open(file, framework="pt") as stored:
            shapes |= {name: tuple(stored.get_slice(name).get_shape()) for name in stored.keys()}  # noqa: SIM118
    return shapes


def _read_config(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return config


def _kv_space(folder: Path, *, max_batch: int, device: str, kv_tokens: int) -> dict[str, Any]:
    """The cache, and the longest sequence that fits it alone: vLLM starts with no less."""
    max_positions = read_max_positions(folder)
    if device != "cpu" and not kv_tokens:
        return {"max_model_len": max_positions}
    block_tokens = CPU_BLOCK_TOKENS if device == "cpu" else GPU_BLOCK_TOKENS
    block_bytes = block_tokens * _token_bytes(_read_config(folder))
    blocks_of_one = -(-max_positions // block_tokens)
    affordable = max(CPU_KV_BYTES // block_bytes, blocks_of_one)
    num_blocks = -(-kv_tokens // block_tokens) or min(max_batch * blocks_of_one, affordable)
    space = {
        "block_size": block_tokens,
        "max_model_len": min(max_positions, num_blocks * block_tokens),
        "num_gpu_blocks_override": 1 + num_blocks,  # one is vLLM's own
    }
    return space | ({"kv_cache_memory_bytes": (1 + num_blocks) * block_bytes} if device == "cpu" else {})


def _token_bytes(config: dict[str, Any]) -> int:
    num_heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // num_heads
    kv_heads = config.get("num_key_value_heads") or num_heads
    itemsize = 4 if _dtype(config) == "float32" else 2
    return int(2 * config["num_hidden_layers"] * kv_heads * head_dim * itemsize)
