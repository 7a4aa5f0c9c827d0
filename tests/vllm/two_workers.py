"""An engine on two workers: every start runs two processes that import vLLM."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from engine.inference.vllm.engine import VllmRolloutEngine
from engine.inference.vllm.start import NO_ADAPTERS, AdapterRoom
from engine.process.progress import LoopProgress

SHARED_MEMORY: Final = Path("/dev/shm")


class TwoWorkers:
    """An engine on two workers."""

    def __init__(self, folder: Path, adapters: AdapterRoom = NO_ADAPTERS) -> None:
        options: dict[str, Any] = {"max_batch": 8, "device": "cpu", "kv_tokens": 2_048}
        self.signs = LoopProgress()
        with self.signs.attached():  # after this block, all signs are the workers'
            self.engine = VllmRolloutEngine(folder, **options, num_devices=2, adapters=adapters)
        self.pids: list[int] = self.rpc(_pid)
        self.shared = {inode for pid in self.pids for inode in shared_memory_of(pid)}

    @property
    def names_in_shared_memory(self) -> list[str]:
        """The names of files that its workers have mapped, without those of other engines."""
        return [entry.name for entry in os.scandir(SHARED_MEMORY) if entry.inode() in self.shared]

    def rpc(self, call: Any, *args: object) -> list[Any]:
        answers: list[Any] = self.engine._llm.collective_rpc(call, args=args)
        return answers


def _pid(worker: Any) -> int:
    return os.getpid()


def shared_memory_of(pid: int) -> set[int]:
    """The inodes of shared memory that a process has mapped."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {int(line.split()[4]) for line in lines if f"{SHARED_MEMORY}/" in line}


@contextmanager
def lend_folder() -> Iterator[Path]:
    with TemporaryDirectory() as folder:
        yield Path(folder)
