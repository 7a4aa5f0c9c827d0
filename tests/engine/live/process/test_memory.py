"""Out-of-memory errors are detected in every form, and other errors are not taken for them."""

import errno
import subprocess
import sys

import pytest
import torch
from ray.exceptions import ActorDiedError, OutOfMemoryError

from engine.live.process.memory import arithmetic, describe_error, is_out_of_memory, out_of_memory
from engine.live.trainer.ranks import RankFailed
from engine.spec.job import JobSpec
from engine.training.checkpoint.content import SavingFailed

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


@pytest.mark.long
def test_process_at_its_memory_limit_is_out_of_memory() -> None:
    child = subprocess.run([sys.executable, "-c", IN_A_LIMIT], capture_output=True, text=True, check=True)
    assert child.stdout.split() == ["RuntimeError", "True", "MemoryError", "True"]


def test_oversized_tensor_counts_as_out_of_memory_as_cause_too() -> None:
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
        SavingFailed("step-000002 was not written: rank 1: MemoryError: "),
    ],
)
def test_every_form_of_out_of_memory_is_detected(error: Exception) -> None:
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
def test_other_failures_are_not_out_of_memory(error: Exception) -> None:
    assert not is_out_of_memory(error)


def test_arithmetic_lists_terms_and_the_smallest_remedy() -> None:
    spec = JobSpec.model_validate({"name": "x"})
    trainer, replica = (arithmetic(spec, part=part) for part in ("trainer", "rollout"))
    assert "It needs less if you" in trainer and "gradients" in trainer and "moments" in trainer
    assert "It needs up to" in replica and trainer != replica
    assert arithmetic(spec, part="data") == ""
    taught = JobSpec.model_validate({"name": "x", "algorithm": {"teacher": {"source": "demo"}}})
    assert "teacher" in arithmetic(taught, part="trainer")
    words = out_of_memory("trainer", "CUDA out of memory.\nand more", trainer)
    assert words.startswith("trainer ran out of memory (CUDA out of memory). It needs up to")


def test_error_names_its_place_and_out_of_memory_comes_first() -> None:
    error = torch.OutOfMemoryError("CUDA out of memory.\nA list of all tensors")
    error.add_note("in a micro-batch of 9,120 tokens, one sequence of 9,120")
    assert describe_error(error) == "CUDA out of memory; in a micro-batch of 9,120 tokens, one sequence of 9,120"
    assert describe_error(MemoryError()) == ""
    failed = RankFailed.of(
        ["rank 2: RuntimeError: Connection closed by peer", f"rank 1: OutOfMemoryError: {describe_error(error)}"]
    )
    assert str(failed).startswith("rank 1: OutOfMemoryError") and "rank 2" in str(failed) and is_out_of_memory(failed)
