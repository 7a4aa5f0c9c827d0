"""One vLLM, which fails as a whole: its engine in this process and, where a model takes several devices, its workers in
processes of their own.

    this process: schedules ──▶ a worker for each device        if one dies, the others and the engine end too

Invariants:
- after a failure every call raises: a call that broke off is never continued;
- workers end with this process, however it ends, and their shared memory is unlinked once the engine has started:
  nothing is left behind.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, cast

from engine.inference.vllm.probing import row_logprobs
from engine.weights.chunks import copy_bytes, hold_copy
from engine.weights.installing import NothingInstalled
from engine.weights.open_file import OpenFile, map_path
from engine.weights.parts import HeldParts
from engine.weights.port import WeightVersion

if TYPE_CHECKING:  # imports vLLM
    from engine.inference.vllm.front import TokenOutput

Shapes = dict[str, tuple[int, ...]]
"""Of tensors, by name."""
SHARED_MEMORY: Final = Path("/dev/shm")
PYTHONS_OWN: Final = "psm_"  # names that Python's resource tracker would remove too
END_WITHIN_S: Final = 10.0  # for workers that were shut down or killed


class EngineBroken(RuntimeError):
    """vLLM failed and this engine cannot be used anymore."""


class Core:
    def __init__(self, llm: Any, *, is_empty: bool) -> None:
        """`llm`: a `QuietEngine` that was just started. `is_empty`: without weights."""
        self._llm, self._failure, self._is_empty = llm, "", is_empty
        self._executor = llm.engine_core.engine_core.model_executor
        self._processes: list[BaseProcess] = [worker.proc for worker in getattr(self._executor, "workers", ())]
        self._first_to_end: BaseProcess | None = None
        if self._processes:
            Thread(target=self._end_together, name="vllm-workers", daemon=True).start()
            self._forget_names()

    @property
    def llm(self) -> Any:
        self.check()
        return self._llm

    @property
    def scheduler(self) -> Any:
        return self.llm.engine_core.engine_core.scheduler

    def check(self) -> None:
        if self._failure:
            raise EngineBroken(f"{EngineBroken.__doc__} {self._failure}")

    def check_begun(self) -> None:
        if self._is_empty:
            raise NothingInstalled

    def step(self) -> "Iterable[TokenOutput]":
        with self._whole():
            outputs: Iterable[TokenOutput] = self._llm.step()
            return outputs

    def finish(self) -> "list[TokenOutput]":
        """Waits for the steps in progress; returns their tokens."""
        with self._whole():
            return list(self._llm.finish())

    def install(self, weights: WeightVersion, *, folder: Path, shapes: Shapes) -> list[HeldParts]:
        """Returns what each worker holds. `shapes`: of all tensors in the folder, to which an adapter is added."""
        file = (weights.file or hold_copy(weights.buffer)) if self._processes else None
        update = {
            "manifest": weights.manifest.cut,
            "memory": weights.buffer if file is None else file.path,
            "folder": folder,
            "shapes": shapes,
        }
        with self._whole():
            held: list[HeldParts] = self._llm.collective_rpc("install_weights", args=(update,))
        self._is_empty = False
        return held

    def add_adapter(self, adapter: Any) -> None:
        """A failure breaks the engine: some workers may have the adapter and others not."""
        with self._whole():
            self._llm.add_lora(adapter)

    def adapter_parts(self, number: int, shapes: Shapes, adapted: Shapes) -> list[HeldParts]:
        """What each worker holds of vLLM's adapter `number`. `shapes`: of the base's tensors; `adapted`: of its own."""
        with self._whole():
            parts: list[HeldParts] = self._llm.collective_rpc("adapter_parts", args=(number, shapes, adapted))
            return parts

    def probe(self, token_ids: Sequence[int], adapter: Any) -> tuple[float, ...]:
        """No step may be in progress (call `finish` first)."""
        with self._whole():
            return row_logprobs(self._llm, token_ids, adapter)

    def read_pages(self, block_ids: Sequence[int], memory: memoryview, filled: Callable[[int], None]) -> None:
        with self._whole():
            if not self._processes:
                self._llm.collective_rpc("read_kv", args=(block_ids, memory, filled))
                return
            shared = OpenFile.without_name(len(memory))
            self._llm.collective_rpc("read_kv_into", args=(block_ids, shared.path, len(memory)))
            copy_bytes(map_path(shared.path, len(memory)), memory)
            filled(len(memory))

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Wraps calls that leave vLLM in an inconsistent state if they fail."""
        self.check()
        try:
            yield
        except Exception as error:
            self._failure, ended = f"{type(error).__name__}: {error}", self._first_to_end
            for process in self._processes:
                process.kill()
            self.close()
            if ended is None:
                raise
            self._failure = f"{ended.name} ended, exit code {ended.exitcode}"
            raise EngineBroken(f"{EngineBroken.__doc__} {self._failure}") from error

    def close(self) -> None:
        """Ends worker processes only: everything else that vLLM would shut down is shared by all engines here."""
        if self._processes:
            self._failure = self._failure or "It is closed."
            self._llm.engine_core._finalizer.detach()
            self._executor.shutdown()
            for process in self._processes:
                process.join(END_WITHIN_S)

    def _end_together(self) -> None:
        """Kills all workers when one ends: the others would spin forever on the memory that they share with it."""
        by_sentinel = {process.sentinel: process for process in self._processes}
        self._first_to_end = by_sentinel[cast("int", wait(list(by_sentinel))[0])]
        for process in self._processes:
            process.kill()

    def _forget_names(self) -> None:
        """Unlinks the workers' shared memory, which every process that needs it has mapped."""
        for name in {name for names in self._llm.collective_rpc("forget_names") for name in names}:
            (SHARED_MEMORY / name).unlink(missing_ok=True)
            if name.startswith(PYTHONS_OWN):
                resource_tracker.unregister(f"/{name}", "shared_memory")
        self._executor.rpc_broadcast_mq.buffer.is_creator = False  # otherwise it would unlink the name again
