"""Presets: values for the settings that a spec leaves out, by its model's size and family, each with its reason.

The defaults of `JobSpec` suit the demo, whose model has 0.2 million weights. A pretrained language model needs about a
hundredth of its learning rate and answers a hundred times as long.

Invariants:
- a setting of the spec stays, even one set to its default;
- a preset that conflicts with the rest of the spec is skipped: a valid spec stays valid;
- a filled spec sets everything, so that filling it again, or with the presets of another release, changes nothing.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from engine.fit.shape import ModelShape
from engine.presets.by_pool import PATHS_BY_POOL, STAGES_BY_POOL, PoolSize
from engine.presets.preset import Preset
from engine.spec.environments.workers import CALLS_OF_A_WORKER, open_samples, workers_for
from engine.spec.job import JobSpec, TrainerSpec
from engine.spec.schedules import SCHEDULES
from engine.spec.settings.conditional import CONDITIONAL_SETTINGS
from engine.spec.settings.paths import is_set, value_at, with_settings
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
"""Presets that depend on the job. The others equal the defaults and give the reason why they suit a large model."""

SMALLEST: Final = 100_000_000  # weights; smaller models are made for one task or for tests, like the demo
THINKING: Final = ("qwen3", "qwen3_moe")
THOUGHTS, ANSWER = 8_192, 2_048
PROMPT_TOKENS: Final = 1_024
Stage = Callable[[JobSpec, ModelShape], Iterator[Preset]]

ADAPTERS_RATE: Final = 10
LONGEST_RUNTIME_S: Final = 2 * 86_400


def apply_presets(spec: JobSpec, shape: ModelShape | None, pool: PoolSize | None = None) -> JobSpec:
    """The spec with presets applied. `shape` of the model and size of the `pool`: None if unknown."""
    if shape is None or shape.num_weights < SMALLEST:
        return spec
    for stage in _stages(pool):
        for preset in stage(spec, shape):
            if not is_set(spec, preset.path):
                spec = with_settings(spec, {preset.path: preset.value}) or spec
    return spec


def active_presets(spec: JobSpec, shape: ModelShape | None, pool: PoolSize | None = None) -> tuple[Preset, ...]:
    """The presets whose values a filled spec has, whether the user or `apply_presets` set them."""
    if shape is None or shape.num_weights < SMALLEST:
        return ()
    presets = (preset for stage in _stages(pool) for preset in stage(spec, shape))
    return tuple(preset for preset in presets if value_at(spec, preset.path) == preset.value)


def _stages(pool: PoolSize | None) -> tuple[Stage, ...]:
    """The stages in order; each sees the presets applied by those before it."""
    of_pool = () if pool is None else tuple(partial(stage, pool=pool) for stage in STAGES_BY_POOL)
    return (_presets, *of_pool, _workers)


def without_presets(spec: JobSpec) -> dict[str, Any]:
    """The spec as a document to edit, without preset values, so that they follow when the model is changed."""
    document = spec.model_dump(mode="json")
    for path in PRESET_NUMBERS:
        if not is_set(spec, path):
            *parents, last = path.split(".")
            node = document
            for name in parents:
                node = node[name]
            del node[last]
    return document


def _presets(spec: JobSpec, shape: ModelShape) -> Iterator[Preset]:
    yield _learning_rate(spec)
    yield _new_tokens(spec, shape)
    longest = spec.rollout.max_new_tokens if is_set(spec, "rollout.max_new_tokens") else _new_tokens(spec, shape).value
    assert isinstance(longest, int)
    yield Preset(
        path="trainer.micro_batch_tokens",
        value=max(longest + PROMPT_TOKENS, TrainerSpec().micro_batch_tokens),
        reason="The longest answer and its prompt are one forward pass, so a smaller value would save no memory.",
    )
    yield Preset(
        path="trainer.compute_dtype",
        value=None,
        reason="bfloat16 on a GPU, as the model was trained; weights stay in float32, which can represent such small "
        "steps. If the log-probs of a mixture of experts drift from the rollouts', set float32.",
    )
    yield _clip(spec)
    yield from _critic(spec)
    yield _runtime()
    yield Preset(
        path="algorithm.kl.coefficient",
        value=0.0,
        reason="With verified rewards the policy may move far from its start (DAPO, arXiv 2503.14476, section 2.3). A "
        "reference model is as large as the policy.",
    )
    yield Preset(
        path="schedule.name",
        value="laminar",
        reason="No step waits for the longest answer, which takes longer the larger the model is.",
    )
    yield Preset(
        path="schedule.max_staleness",
        value=None,
        reason=f"The schedule's default, {SCHEDULES[spec.schedule.name].max_staleness}: with a correction a job loses "
        "little at that staleness (AReaL, arXiv 2505.24298, table 2).",
    )


def _workers(spec: JobSpec, shape: ModelShape) -> Iterator[Preset]:
    yield Preset(
        path="environment.workers",
        value=workers_for(spec),
        reason=f"One per {CALLS_OF_A_WORKER} open samples; all replicas together have {open_samples(spec):,}.",
    )


def _runtime() -> Preset:
    return Preset(
        path="max_runtime_s",
        value=LONGEST_RUNTIME_S,
        reason="Two days, because a step of such a model takes minutes. Unused time is not billed, but the budget must "
        "cover it. Near the end the job saves a checkpoint to resume from.",
    )


def _critic(spec: JobSpec) -> Iterator[Preset]:
    path = "algorithm.critic.learning_rate"
    if CONDITIONAL_SETTINGS[path].acts(spec):
        reason = "Ten times the policy's: the critic's head starts untrained (verl's PPO examples)."
        yield Preset(path=path, value=1e-5, reason=reason)


def _learning_rate(spec: JobSpec) -> Preset:
    path, of_all = "optimizer.learning_rate", 1e-6
    if spec.trainer.lora_rank:
        reason = "LoRA needs ten times the rate of full training (Thinking Machines, LoRA Without Regret, 2025)."
        return Preset(path=path, value=ADAPTERS_RATE * of_all, reason=reason)
    reason = "The rate used for models of 7 and 32 billion weights (DeepSeekMath, arXiv 2402.03300; DAPO)."
    return Preset(path=path, value=of_all, reason=reason)


def _new_tokens(spec: JobSpec, shape: ModelShape) -> Preset:
    thinks = shape.family in THINKING
    cache = kv_tokens_of_a_slot(spec) or shape.max_positions
    most = max(min(shape.max_positions, cache) // 2, 1)  # leaves room for the prompt
    reason = (
        "This family thinks before it answers. It can use four times as many, but the longest answer sets the pace."
        if thinks
        else "An answer with its steps. A model that thinks before it answers needs several times as many."
    )
    return Preset(path="rollout.max_new_tokens", value=min(THOUGHTS if thinks else ANSWER, most), reason=reason)


def _clip(spec: JobSpec) -> Preset:
    path = "algorithm.clip_high"
    if not CONDITIONAL_SETTINGS[path].acts(spec):
        return Preset(path=path, value=None, reason="A step of one update never clips.")
    if spec.algorithm.name != "grpo":
        return Preset(path=path, value=None, reason=f"The default of {spec.algorithm.name}.")
    reason = (
        "More room than 0.2 for rare tokens to become likelier, which prevents entropy collapse (DAPO, section 3.1)."
    )
    return Preset(path=path, value=0.28, reason=reason)
