"""Presets: what a job gets by its model's size and family, for what its spec does not say, each with its reason.

The defaults of `JobSpec` are those of the demo, whose model has 0.2 million weights. A model that has learned a
language already wants a learning rate of a hundredth of that, and answers of a hundred times its length.

Invariants:
- what a spec says stays, also where it says a default;
- a preset that would not fit the rest of the spec is left out: a valid spec stays one;
- a filled spec says everything, so that filling it again, or a release with other presets, changes nothing of it.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from engine.spec.environment_workers import CALLS_OF_A_WORKER, open_samples, workers_for
from engine.spec.fit.shape import ModelShape
from engine.spec.job import JobSpec, TrainerSpec
from engine.spec.knob_effects import KNOB_EFFECTS
from engine.spec.preset import Preset, says, value_at, with_settings
from engine.spec.presets_by_pool import PATHS_BY_POOL, STAGES_BY_POOL, PoolSize
from engine.spec.schedules import SCHEDULES
from engine.spec.slots import kv_tokens_of_a_slot

PRESET_NUMBERS: Final = (
    "optimizer.learning_rate",
    "rollout.max_new_tokens",
    "trainer.micro_batch_tokens",
    "algorithm.clip_high",
    "environment.workers",
    "max_runtime_s",
    *PATHS_BY_POOL,
)
"""Those that differ by the job. The others are the defaults, with the reason why they are right for a large one."""

SMALLEST: Final = 100_000_000  # weights: what is smaller was made for a task, or for tests, as the demo was
THINKING: Final = ("qwen3", "qwen3_moe")
THOUGHTS, ANSWER = 8_192, 2_048
PROMPT_TOKENS: Final = 1_024
Stage = Callable[[JobSpec, ModelShape], Iterator[Preset]]

ADAPTERS_RATE: Final = 10
LONGEST_RUNTIME_S: Final = 2 * 86_400


def filled(spec: JobSpec, shape: ModelShape | None, pool: PoolSize | None = None) -> JobSpec:
    """`shape`: the model's, `pool`: the devices' of its pool, if they are known."""
    if shape is None or shape.num_weights < SMALLEST:
        return spec
    for stage in _stages(pool):
        for preset in stage(spec, shape):
            if not says(spec, preset.path):
                spec = with_settings(spec, {preset.path: preset.value}) or spec
    return spec


def in_force(spec: JobSpec, shape: ModelShape | None, pool: PoolSize | None = None) -> tuple[Preset, ...]:
    """Those that a filled spec has, whoever gave them to it."""
    if shape is None or shape.num_weights < SMALLEST:
        return ()
    presets = (preset for stage in _stages(pool) for preset in stage(spec, shape))
    return tuple(preset for preset in presets if value_at(spec, preset.path) == preset.value)


def _stages(pool: PoolSize | None) -> tuple[Stage, ...]:
    """A stage sees what those before it have filled in."""
    of_pool = () if pool is None else tuple(partial(stage, pool=pool) for stage in STAGES_BY_POOL)
    return (_presets, *of_pool, _workers)


def as_said(spec: JobSpec) -> dict[str, Any]:
    """A document of it, to be changed: what it leaves to its model, it leaves to another one too."""
    document = spec.model_dump(mode="json")
    for path in PRESET_NUMBERS:
        if not says(spec, path):
            *way, last = path.split(".")
            here = document
            for step in way:
                here = here[step]
            del here[last]
    return document


def _presets(spec: JobSpec, shape: ModelShape) -> Iterator[Preset]:
    yield _learning_rate(spec)
    yield _new_tokens(spec, shape)
    longest = spec.rollout.max_new_tokens if says(spec, "rollout.max_new_tokens") else _new_tokens(spec, shape).value
    assert isinstance(longest, int)
    yield Preset(
        path="trainer.micro_batch_tokens",
        value=max(longest + PROMPT_TOKENS, TrainerSpec().micro_batch_tokens),
        reason="The longest answer with its prompt is read at once, so that fewer would save no memory.",
    )
    yield Preset(
        path="trainer.compute_dtype",
        value=None,
        reason="bfloat16 on a GPU, as the model was trained; weights stay in float32, which keeps steps as small as "
        "these. A mixture whose log-probs drift from the rollout's wants float32: the job says so.",
    )
    yield _clip(spec)
    yield from _critic(spec)
    yield _runtime()
    yield Preset(
        path="algorithm.kl.coefficient",
        value=0.0,
        reason="Where answers are checked, the policy may go far from where it began (DAPO, arXiv 2503.14476, section "
        "2.3), and a reference model is as large as the policy.",
    )
    yield Preset(
        path="schedule.name",
        value="laminar",
        reason="Nobody waits for the longest answer, and the larger the model, the longer it takes.",
    )
    yield Preset(
        path="schedule.max_staleness",
        value=None,
        reason=f"The schedule's own, {SCHEDULES[spec.schedule.name].max_staleness}: with a correction a job loses "
        "little by that age (AReaL, arXiv 2505.24298, table 2).",
    )


def _workers(spec: JobSpec, shape: ModelShape) -> Iterator[Preset]:
    yield Preset(
        path="environment.workers",
        value=workers_for(spec),
        reason=f"One for {CALLS_OF_A_WORKER} open samples: {open_samples(spec):,} of all replicas together.",
    )


def _runtime() -> Preset:
    return Preset(
        path="max_runtime_s",
        value=LONGEST_RUNTIME_S,
        reason="Two days: a step of such a model takes minutes. Unused time is not billed, but a budget must have "
        "that much left. Near the end the job saves a checkpoint, from which it can go on.",
    )


def _critic(spec: JobSpec) -> Iterator[Preset]:
    path = "algorithm.critic.learning_rate"
    if KNOB_EFFECTS[path].acts(spec):
        reason = "Ten times the policy's: the critic's head begins from nothing (verl's examples of PPO)."
        yield Preset(path=path, value=1e-5, reason=reason)


def _learning_rate(spec: JobSpec) -> Preset:
    path, of_all = "optimizer.learning_rate", 1e-6
    if spec.trainer.lora_rank:
        reason = "An adapter takes ten times the rate of all weights (Thinking Machines, LoRA Without Regret, 2025)."
        return Preset(path=path, value=ADAPTERS_RATE * of_all, reason=reason)
    reason = "What models of 7 and 32 billion weights were trained with (DeepSeekMath, arXiv 2402.03300; DAPO)."
    return Preset(path=path, value=of_all, reason=reason)


def _new_tokens(spec: JobSpec, shape: ModelShape) -> Preset:
    thinks = shape.family in THINKING
    cache = kv_tokens_of_a_slot(spec) or shape.max_positions
    most = max(min(shape.max_positions, cache) // 2, 1)  # a prompt wants room beside it
    reason = (
        "This family thinks before it answers; it may take four times as many, and the longest answer sets the pace."
        if thinks
        else "An answer with its steps; a model that thinks aloud wants several times as many."
    )
    return Preset(path="rollout.max_new_tokens", value=min(THOUGHTS if thinks else ANSWER, most), reason=reason)


def _clip(spec: JobSpec) -> Preset:
    path = "algorithm.clip_high"
    if not KNOB_EFFECTS[path].acts(spec):
        return Preset(path=path, value=None, reason="A step of one update does not reach a clip.")
    if spec.algorithm.name != "grpo":
        return Preset(path=path, value=None, reason=f"The value of {spec.algorithm.name} itself.")
    reason = (
        "Rare words may become likelier than 0.2 allows, else a model soon says one thing only (DAPO, section 3.1)."
    )
    return Preset(path=path, value=0.28, reason=reason)
