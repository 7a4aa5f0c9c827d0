"""A run of this engine: one replica, one trainer, each with one thread.

Invariant: the last steps are not counted: no further batch is prepared while they train, which would flatter.
"""

from collections.abc import Sequence

from engine.spec.facts import StepTrained
from engine.spec.job import JobSpec
from tests.bench.engine.peers.processes import cpu_s_by_part
from tests.bench.engine.peers.split import Measured, StepMs
from tests.bench.engine.peers.tasks import BATCH, GROUP, PROMPTS, Task
from tests.bench.engine.runs import run_job


def run_ours(task: Task, *, steps: int, warm_up: int) -> Measured:
    cpu_at: dict[int, dict[str, float]] = {}

    def look(step: int) -> None:
        if step in (warm_up, warm_up + steps):
            cpu_at[step] = cpu_s_by_part()

    [(seconds, taken)] = run_job(spec_of(task, steps=warm_up + steps + 2), at_step=look).windows(
        warm_up=warm_up, steps=steps
    )[:1]
    before, after = (cpu_at[step] for step in (warm_up, warm_up + steps))
    by_part = {part: 1e3 * (after[part] - before[part]) / steps for part in after if part in before}
    return Measured(
        samples_per_s=steps * BATCH / seconds,
        of_step=_of_step(1e3 * seconds / steps, taken, cpu_ms=sum(by_part.values())),
        cpu_by_part=by_part,
    )


def spec_of(task: Task, *, steps: int) -> JobSpec:
    return JobSpec.model_validate(
        {
            "name": "peer",
            "environment": task.environment,
            "training": {"steps": steps, "prompts_per_step": PROMPTS, "checkpoint_every": steps},
            "algorithm": {"group_size": GROUP},
            "rollout": {"replicas": 1, "max_batch": BATCH, "max_new_tokens": task.new_tokens, **task.rollout},
            "evaluation": {"prompts": 1},
        }
    )


def _of_step(step_ms: float, steps: Sequence[StepTrained], *, cpu_ms: float) -> StepMs:
    """A replica reports its work about once a second, so only some steps have figures."""
    waited_ms = step_ms * _mean(steps, "trainer/wait_fraction")
    stalled_ms = 1e3 * _mean(steps, "trainer/handover_s")
    doing = {name: step_ms * _mean(steps, f"rollout/time_{name}") for name in ("decode", "move", "weights")}
    knows = any("rollout/time_decode" in step.metrics for step in steps)
    return StepMs(
        step_ms=step_ms,
        generating_ms=doing["decode"],
        training_ms=step_ms - waited_ms - stalled_ms,
        handover_ms=stalled_ms + doing["weights"],
        rollout_idle_ms=step_ms - sum(doing.values()) if knows else float("nan"),
        trainer_idle_ms=waited_ms,
        cpu_ms=cpu_ms,
    )


def _mean(steps: Sequence[StepTrained], name: str) -> float:
    """Over the steps that know anything of its kind."""
    kind = name.partition("_")[0] if name.startswith("rollout/time_") else name
    known = [step.metrics for step in steps if any(each.startswith(kind) for each in step.metrics)]
    return sum(metrics.get(name, 0.0) for metrics in known) / len(known) if known else float("nan")
