"""A part out of memory ends the run with a failure class of its own and the arithmetic, and is not replaced."""

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.live.run.attempt import Attempt, AttemptPlan
from engine.sinks.memory import MemorySink
from engine.spec.facts import FactBody, FaultDetected, PipelineReady
from engine.spec.job import JobSpec

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("own_ray")]


# Enough for small allocations: a tensor of a pass hits the limit, not a thread of Ray's.
ROOM = 64 * 2**20


class Tightened(MemorySink):
    """Once the run is ready, limits its trainer to little more address space than it uses."""

    def __init__(self, processes_of: Callable[[str], list[Any]]) -> None:
        super().__init__()
        self._processes_of = processes_of

    def record(self, body: FactBody) -> None:
        super().record(body)
        if isinstance(body, PipelineReady):
            for trainer in self._processes_of("TrainerActor"):
                limit = trainer.memory_info().vms + ROOM
                resource.prlimit(trainer.pid, resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


@pytest.mark.long
def test_trainer_out_of_memory_ends_the_run_with_arithmetic(
    tmp_path: Path, processes_of: Callable[[str], list[Any]]
) -> None:
    # One pass over 2,048 answers of some 25 tokens; autograd keeps 13 kB for each token: 600 MB.
    spec = JobSpec.model_validate(
        {
            "name": "tight",
            "training": {"steps": 4, "prompts_per_step": 64},
            "algorithm": {"group_size": 32},
            "rollout": {"replicas": 1, "max_batch": 128, "max_new_tokens": 100},
            "trainer": {"micro_batch_tokens": 65_536, "activations": "kept"},
        }
    )
    sink = Tightened(processes_of)
    finished = Attempt(AttemptPlan(spec=spec, checkpoints=tmp_path / "checkpoints"), sink).run(lambda: None)
    assert (finished.outcome, finished.failure_class) == ("failed", "memory"), finished.message
    cause, *lines = finished.message.splitlines()
    assert cause.startswith("trainer ran out of memory") and "It needs up to" in cause and "the whole host has" in cause
    assert "needs less if you" in cause and any("gradients" in line for line in lines)
    assert not [body for body in sink.bodies if isinstance(body, FaultDetected) and body.component == "trainer"]
