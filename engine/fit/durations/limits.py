"""How long a job may take to begin, and to end the step that it is at: what it reads, computes and writes, at the
slowest honest rates (slowest.py). Time limits follow from these; callers with a floor add them to it.
"""

from engine.fit.durations.slowest import estimate_s
from engine.fit.durations.step import step_work
from engine.fit.hosts import checkpoint_bytes
from engine.fit.plan import PROMPT_TOKENS
from engine.fit.planning import plan_trainer
from engine.fit.shape import ModelShape
from engine.spec.job import JobSpec


def longest_start_s(spec: JobSpec, shape: ModelShape, *, teacher: ModelShape | None = None) -> float:
    """Every model of the job is read from its folder, one after the other, and the checkpoint that it resumes from."""
    num_bytes = shape.num_weights * shape.stored_bytes  # replicas read in parallel
    if not spec.only_evaluates:
        plan = plan_trainer(spec, shape, teacher=teacher)
        num_models = 1 + (plan.has_reference and not plan.lora_rank) + plan.has_critic
        num_bytes = num_models * num_bytes + checkpoint_bytes(shape, plan)
    if teacher is not None:
        num_bytes += teacher.num_weights * teacher.stored_bytes
    return estimate_s(num_bytes=num_bytes)


def longest_step_s(
    spec: JobSpec, shape: ModelShape, *, prompt_tokens: int = PROMPT_TOKENS, teacher: ModelShape | None = None
) -> float:
    """Of training, on GPUs, once a batch is there: answers are all as long as the job allows."""
    work = step_work(spec, shape, prompt_tokens=prompt_tokens, teacher=teacher)
    return estimate_s(num_flops=work.training_flops / max(spec.trainer_devices, 1), device="cuda")


def longest_pause_s(spec: JobSpec, shape: ModelShape, *, teacher: ModelShape | None = None) -> float:
    """The step that a job is at, and a checkpoint after it."""
    if spec.only_evaluates:
        return 0.0
    plan = plan_trainer(spec, shape, teacher=teacher)
    saving_s = estimate_s(num_bytes=checkpoint_bytes(shape, plan))
    return longest_step_s(spec, shape, teacher=teacher) + saving_s
