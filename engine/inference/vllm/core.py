"""One vLLM that works or is of no use: its engine in this process and, where a model takes several devices, its workers
in processes of their own.

    this process: schedules ──▶ a worker for each device        one that dies takes the others with it, and the engine

Invariants:
- after a failure every call raises: what broke off half-way is never gone on with;
- workers end with this process, however that ends, and the memory over which they speak has no name any more when the
  engine is there: nothing is left behind.
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
from engine.weights.port import WeightVersion

if TYPE_CHECKING:  # imports vLLM
    from engine.inference.vllm.front import Said

SHARED_MEMORY: Final = Path("/dev/shm")
PYTHONS_OWN: Final = "psm_"  # what it also has in its list of things to remove
END_WITHIN_S: Final = 10.0  # of workers that were told to, or killed


class EngineBroken(RuntimeError):
    """vLLM failed: this engine is of no use any more."""


class Core:
    def __init__(self, llm: Any, *, is_empty: bool) -> None:
        """Of a `QuietEngine` that was just started, with weights or none."""
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

    def step(self) -> "Iterable[Said]":
        with self._whole():
            told: Iterable[Said] = self._llm.step()
            return told

    def finish(self) -> "list[Said]":
        """The tokens that are on their way."""
        with self._whole():
            return list(self._llm.finish())

    def install(self, weights: WeightVersion, *, folder: Path, names: tuple[str, ...]) -> None:
        """`names`: of all tensors in the folder, which is what an adapter is added to."""
        file = (weights.file or hold_copy(weights.buffer)) if self._processes else None
        told = {
            "manifest": weights.manifest.cut,
            "memory": weights.buffer if file is None else file.path,
            "folder": folder,
            "names": names,
        }
        with self._whole():
            self._llm.collective_rpc("install_weights", args=(told,))
        self._is_empty = False

    def add_adapter(self, adapter: Any) -> None:
        """Where one worker has it and another not, nobody could say what the next step is of."""
        with self._whole():
            self._llm.add_lora(adapter)

    def probe(self, token_ids: Sequence[int], adapter: Any) -> tuple[float, ...]:
        """No step may be under way (`finish`)."""
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
        """Around whatever leaves vLLM between two states if it fails."""
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
        """Ends workers in processes, and no more: the rest that vLLM would take down is every engine's here."""
        if self._processes:
            self._failure = self._failure or "It was closed."
            self._llm.engine_core._finalizer.detach()
            self._executor.shutdown()
            for process in self._processes:
                process.join(END_WITHIN_S)

    def _end_together(self) -> None:
        """One that computes with another waits for it for ever, spinning, where they share memory."""
        by_sentinel = {process.sentinel: process for process in self._processes}
        self._first_to_end = by_sentinel[cast("int", wait(list(by_sentinel))[0])]
        for process in self._processes:
            process.kill()

    def _forget_names(self) -> None:
        """Of the memory over which they speak: all who need it have mapped it."""
        for name in {name for names in self._llm.collective_rpc("forget_names") for name in names}:
            (SHARED_MEMORY / name).unlink(missing_ok=True)
            if name.startswith(PYTHONS_OWN):
                resource_tracker.unregister(f"/{name}", "shared_memory")
        self._executor.rpc_broadcast_mq.buffer.is_creator = False  # it would remove the name once more
