"""Our methods of a vLLM worker, in addition to its own: install weights and sum them, export pages of its cache.

vLLM mixes the class into its own worker, wherever that runs, and calls its methods by name. Each worker imports this
module before it creates anything, so everything registered here is known in all of them.

Invariants:
- sequences in flight keep their KV cache;
- weights change within one call: inside it layers have no weights, and a step would fail.
"""

import multiprocessing.util
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from multiprocessing.shared_memory import SharedMemory
from multiprocessing.synchronize import SemLock
from pathlib import Path
from typing import Any

from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.model_executor.layers.fused_moe.config import FusedMoEConfig

from engine.inference.vllm import cpu_adapters
from engine.inference.vllm.held_parts import adapter_parts
from engine.inference.vllm.kv import layout_of, own_part, read_pages
from engine.inference.vllm.stored import Shapes
from engine.inference.vllm.weights import BACKEND, MappedWeights, NewWeights
from engine.inference.vllm.worker_progress import report_as_worker
from engine.process.progress import working
from engine.weights.open_file import map_path
from engine.weights.parts import HeldParts

WeightTransferEngineFactory.register_engine(BACKEND, MappedWeights)
cpu_adapters.take_over()
report_as_worker()
# No adapter is of experts (start.py). With LoRA enabled, vLLM would choose a kernel that CPUs do not have.
FusedMoEConfig.is_lora_enabled = property(lambda config: False, lambda config, given: None)


class RolloutWorker:
    """A base class that vLLM adds to its worker; `self` is that worker."""

    def install_weights(self, update: dict[str, Any]) -> HeldParts:
        """`update`: the fields of a `NewWeights`. Returns nothing of a version without sums."""
        worker: Any = self
        transfer: MappedWeights = worker.weight_transfer_engine
        reader = transfer.reader(NewWeights(**update))
        with reader or nullcontext():
            worker.start_weight_update()
            worker.update_weights(update)
            worker.finish_weight_update()
        if reader is None:
            return HeldParts()
        with working("sum"):
            return replace(reader.held(), merged=transfer.merged)

    def adapter_parts(self, number: int, shapes: Shapes, adapted: Shapes) -> HeldParts:
        runner: Any = self.model_runner  # type: ignore[attr-defined]
        slot = runner.lora_manager._adapter_manager.lora_index_to_id.index(number)
        return adapter_parts(runner.get_model(), slot, shapes, adapted)

    def report_prompt_logprobs(self) -> None:
        """Makes prompt scores log-probs: otherwise they are logits, as the answers' are. The sampler keeps its mode."""
        runner: Any = self.model_runner  # type: ignore[attr-defined]
        runner.model_config.logprobs_mode = "raw_logprobs"
        if (of_v2 := getattr(runner, "prompt_logprobs_worker", None)) is not None:
            of_v2.logprobs_mode = "raw_logprobs"

    def kv_layout(self) -> tuple[str, int]:
        return layout_of(_layers(self))

    def read_kv(self, block_ids: Sequence[int], memory: memoryview, filled: Callable[[int], None]) -> None:
        read_pages(_layers(self), block_ids, memory, filled)

    def read_kv_into(self, block_ids: Sequence[int], path: str, num_bytes: int) -> None:
        """Reads this worker's part of the pages."""
        memory = own_part(map_path(path, num_bytes, writable=True))
        read_pages(_layers(self), block_ids, memoryview(memory), lambda num_filled: None)

    def forget_names(self) -> list[str]:
        """The names of shared memory mapped here, which the caller unlinks; this process will not unlink them again.
        Also removes the semaphores' names."""
        SharedMemory.unlink = _leave  # type: ignore[assignment, method-assign]
        registered: dict[Any, Any] = vars(multiprocessing.util)["_finalizer_registry"]
        for removal in list(registered.values()):
            if removal._callback is vars(SemLock)["_cleanup"].__func__:
                removal()
        lines = Path("/proc/self/maps").read_text().splitlines()
        return sorted({line.rsplit("/", 1)[-1] for line in lines if "/dev/shm/" in line and "(deleted)" not in line})


def _leave(memory: SharedMemory) -> None:
    """No-op: the name is unlinked already."""


def _layers(worker: Any) -> dict[str, Any]:
    layers: dict[str, Any] = worker.vllm_config.compilation_config.static_forward_context
    return layers
