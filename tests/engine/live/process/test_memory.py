"""Memory that ran out is recognised, however it is told, and nothing else is taken for it."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from ray.exceptions import ActorDiedError, OutOfMemoryError, RayError

from engine.live.process.memory import KernelKills, arithmetic, is_out_of_memory, out_of_memory
from engine.live.trainer.ranks import RankFailed
from engine.spec.job import JobSpec

IN_A_LIMIT = """
import resource, torch
from engine.live.process.memory import is_out_of_memory
mapped = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (mapped + 2**30, resource.RLIM_INFINITY))
for make in (lambda: torch.ones(2**30), lambda: bytearray(2**33)):
    try:
        kept = [make(), make(), make()]
    except Exception as error:
        print(type(error).__name__, is_out_of_memory(error))
"""


def test_a_process_at_its_limit_says_so_of_tensors_and_of_bytes() -> None:
    told = subprocess.run([sys.executable, "-c", IN_A_LIMIT], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["RuntimeError", "True", "MemoryError", "True"]


def test_a_tensor_beyond_all_memory_is_out_of_memory_also_as_a_cause() -> None:
    with pytest.raises(RuntimeError) as beyond:
        torch.empty(2**50)
    assert is_out_of_memory(beyond.value)
    wrapped = KeyError("a name")
    wrapped.__cause__ = beyond.value
    assert is_out_of_memory(wrapped)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        OutOfMemoryError("Task was killed due to the node running low on memory."),  # type: ignore[no-untyped-call]
        RankFailed("rank 1: MemoryError: "),
        RankFailed("rank 0: ValueError: no; rank 1: its process has died, its host ran out of memory"),
    ],
)
def test_every_way_of_saying_it_is_understood(error: Exception) -> None:
    assert is_out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("rollout.kv_tokens: out of memory is what this would be"),
        RuntimeError("the store is away"),
        OSError(errno.ENOSPC, "No space left on device"),
        RankFailed("rank 1: its process has died"),
        ActorDiedError(),
    ],
)
def test_another_failure_is_not_taken_for_it(error: Exception) -> None:
    assert not is_out_of_memory(error)


def test_a_kill_by_the_kernel_explains_the_death_of_an_actor_of_this_host_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.live.process.memory._own_address", lambda: "10.0.0.1")
    vmstat = tmp_path / "vmstat"
    vmstat.write_text("nr_free_pages 7\noom_kill 3\n")
    kills, here, elsewhere = KernelKills(vmstat), RayError("ip: 10.0.0.1"), RayError("ip: 10.0.0.2")
    assert not kills.explain(here)
    vmstat.write_text("nr_free_pages 7\noom_kill 4\n")
    assert kills.explain(here) and not kills.explain(here)
    vmstat.write_text("nr_free_pages 7\noom_kill 5\n")
    assert not kills.explain(elsewhere)
    assert not KernelKills(tmp_path / "absent").explain(here)


def test_what_is_needed_is_told_term_by_term_with_the_smallest_change_that_needs_less() -> None:
    spec = JobSpec.model_validate({"name": "x"})
    trainer, replica = (arithmetic(spec, part=part) for part in ("trainer", "rollout"))
    assert "It needs less if you" in trainer and "gradients" in trainer and "moments" in trainer
    assert "It needs up to" in replica and trainer != replica
    assert arithmetic(spec, part="data") == ""
    told = out_of_memory("trainer", "CUDA out of memory.\nand more", trainer)
    assert told.startswith("trainer ran out of memory (CUDA out of memory). It needs up to")
