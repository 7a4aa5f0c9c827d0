"""Our calls to a vLLM worker, beside its own: take new weights in place, hand out pages of its cache.

vLLM mixes the class into its own worker, wherever that runs, and calls its methods by name. Each worker imports this
before it makes anything, so what is registered here is known in all of them.

Invariants:
- what is in flight keeps its KV cache;
- weights are changed within one call: between its parts layers have no weights, and a step would be the last.
"""

import multiprocessing.util
from collections.abc import Callable, Sequence
from multiprocessing.shared_memory import SharedMemory
from multiprocessing.synchronize import SemLock
from pathlib import Path
from typing import Any

from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.model_executor.layers.fused_moe.config import FusedMoEConfig

from engine.inference.vllm import cpu_adapters
from engine.inference.vllm.kv import layout_of, own_part, read_pages
from engine.inference.vllm.weights import BACKEND, MappedWeights
from engine.inference.vllm.worker_signs import speak_as_worker
from engine.weights.open_file import map_path

WeightTransferEngineFactory.register_engine(BACKEND, MappedWeights)
cpu_adapters.take_over()
speak_as_worker()
# Adapters are never of experts (start.py). With any, vLLM would take its kernel that has some, which a CPU has not.
FusedMoEConfig.is_lora_enabled = property(lambda config: False, lambda config, given: None)


class RolloutWorker:
    """A base that vLLM gives its worker; `self` is that worker."""

    def install_weights(self, told: dict[str, Any]) -> None:
        """`told`: the fields of a `NewWeights`."""
        worker: Any = self
        worker.start_weight_update()
        worker.update_weights(told)
        worker.finish_weight_update()

    def tell_prompts_as_logprobs(self) -> None:
        """A prompt's scores are logits where an answer's are: those that the sampler was made with, which it keeps."""
        runner: Any = self.model_runner  # type: ignore[attr-defined]
        runner.model_config.logprobs_mode = "raw_logprobs"
        if (of_v2 := getattr(runner, "prompt_logprobs_worker", None)) is not None:
            of_v2.logprobs_mode = "raw_logprobs"

    def kv_layout(self) -> tuple[str, int]:
        return layout_of(_layers(self))

    def read_kv(self, block_ids: Sequence[int], memory: memoryview, filled: Callable[[int], None]) -> None:
        read_pages(_layers(self), block_ids, memory, filled)

    def read_kv_into(self, block_ids: Sequence[int], path: str, num_bytes: int) -> None:
        """This worker's part, of several that read."""
        memory = own_part(map_path(path, num_bytes, writable=True))
        read_pages(_layers(self), block_ids, memoryview(memory), lambda num_filled: None)

    def forget_names(self) -> list[str]:
        """Those of the shared memory that is mapped here, for whoever removes them all; nothing here tries to again.
        Semaphores are gone with this."""
        SharedMemory.unlink = _leave  # type: ignore[assignment, method-assign]
        registered: dict[Any, Any] = vars(multiprocessing.util)["_finalizer_registry"]
        for removal in list(registered.values()):
            if removal._callback is vars(SemLock)["_cleanup"].__func__:
                removal()
        lines = Path("/proc/self/maps").read_text().splitlines()
        return sorted({line.rsplit("/", 1)[-1] for line in lines if "/dev/shm/" in line and "(deleted)" not in line})


def _leave(memory: SharedMemory) -> None:
    """Its name is gone already."""


def _layers(worker: Any) -> dict[str, Any]:
    layers: dict[str, Any] = worker.vllm_config.compilation_config.static_forward_context
    return layers
