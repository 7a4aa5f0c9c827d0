"""Presets by the pool: devices of trainer and replicas, the inference engine and the batch size.

    trainer    the fewest devices that hold it with exact moments and nothing offloaded
    replicas   the fewest devices that hold the model and a cache for enough whole sequences; as many devices as the
               trainer has, if the job's trajectories fill them
    max_batch  as many sequences as the cache holds at half of their longest

Invariants:
- presets never need more devices than the pool has, if it has enough for the trainer and one replica;
- a spec that fits on no number of devices is left unchanged: its refusal names what would help (`fit/verdict.py`).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import ceil
from typing import Final

from engine.fit.need import gigabytes
from engine.fit.planning import plan_trainer
from engine.fit.replica import ReplicaPlan, backed_tokens, kv_bytes_of_token, replica_need
from engine.fit.shape import ModelShape
from engine.fit.shards import MOST_DEVICES, shard_of, why_not_shardable
from engine.fit.trainer import trainer_need
from engine.fit.verdict import Misfit, trainer_misfit
from engine.presets.preset import Preset, Value
from engine.spec.job import JobSpec
from engine.spec.settings.hints import most_running
from engine.spec.settings.paths import with_settings

FEWEST_SEQUENCES: Final = 16
"""Sequences of full length that a replica's cache must hold; with fewer, decoding reads the weights for few tokens."""
MOST_SEQUENCES: Final = 256
MEANS: Final[dict[str, Value]] = {
    "optimizer.moments": "float32",
    "optimizer.offload": False,
    "trainer.activations": None,
    "trainer.sequence_parallel": 1,
}
"""Settings that save the trainer's memory, and their defaults."""
TRAINER, DEALT = "resources.trainer_devices", "resources.devices_per_replica"
PATHS_BY_POOL: Final = ("rollout.engine", TRAINER, DEALT, "rollout.replicas", "rollout.max_batch")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSize:
    """The size of a pool of GPUs."""

    num_devices: int
    device_bytes: int
    has_vllm: bool = True


def _engine(spec: JobSpec, shape: ModelShape, *, pool: PoolSize) -> Iterator[Preset]:
    if pool.has_vllm:
        reason = "vLLM is made for large models on GPUs; the built-in engine is for small models and CPUs."
        yield Preset(path="rollout.engine", value="vllm", reason=reason)


def _devices(spec: JobSpec, shape: ModelShape, *, pool: PoolSize) -> Iterator[Preset]:
    num_shards = _fewest_shards(spec, shape, pool)
    if num_shards:
        reason = f"The fewest that hold the model and a cache for {FEWEST_SEQUENCES} sequences of full length."
        yield Preset(path=DEALT, value=num_shards, reason=reason)
    if spec.only_evaluates or spec.algorithm.has_teacher:  # a teacher's shape is not known here
        return
    most = max(1, pool.num_devices - (num_shards or spec.resources.devices_per_replica))
    fewest = _fewest_trainers(spec, shape, pool, most)
    device = gigabytes(pool.device_bytes)
    if fewest is not None:
        reason = f"The fewest devices of {device} that hold weights, gradients and moments in float32."
        yield Preset(path=TRAINER, value=fewest, reason=reason)
    else:
        reason = f"All that the pool has left next to a replica; few for this model, at {device} each."
        yield Preset(path=TRAINER, value=max(_powers_of_two(most)), reason=reason)


def _means(spec: JobSpec, shape: ModelShape, *, pool: PoolSize) -> Iterator[Preset]:
    """Settings that save memory if there are too few devices. Never an adapter, which changes what is learned."""
    if spec.only_evaluates or spec.algorithm.has_teacher:
        return
    misfit = _trainer_misfit(spec, shape, pool) or _trainer_misfit(_without_means(spec), shape, pool)
    for change in misfit.changes or () if misfit is not None else ():
        for path, value in change.settings.items():
            reason = f"Otherwise the trainer would not fit on {spec.trainer_devices} devices: {change.words}."
            yield Preset(path=path, value=value, reason=reason)


def _batch(spec: JobSpec, shape: ModelShape, *, pool: PoolSize) -> Iterator[Preset]:
    each = spec.resources.devices_per_replica
    tokens = _cache_tokens(spec, shape, each, pool) if spec.rollout.engine == "vllm" else 0
    if tokens:
        at_once = 2 * tokens // ReplicaPlan.of_spec(spec, shape).longest
        value = max(FEWEST_SEQUENCES, min(1 << max(at_once, 1).bit_length() - 1, MOST_SEQUENCES))
        reason = f"A replica's cache holds {tokens:,} tokens; sequences of half the longest length are assumed."
        yield Preset(path="rollout.max_batch", value=value, reason=reason)


def _replicas(spec: JobSpec, shape: ModelShape, *, pool: PoolSize) -> Iterator[Preset]:
    train, each = spec.trainer_devices, spec.resources.devices_per_replica
    if not train:
        return
    as_many = max(1, min(train, pool.num_devices - train) // each)
    filled = ceil(most_running(spec) / spec.rollout.max_batch)
    reason = "As many devices as the trainer has." if as_many <= filled else "As many as the job's trajectories fill."
    yield Preset(path="rollout.replicas", value=min(as_many, filled), reason=reason)


def _trainer_misfit(spec: JobSpec, shape: ModelShape, pool: PoolSize) -> Misfit | None:
    return trainer_misfit(spec, shape, pool.device_bytes, most_devices=spec.trainer_devices, adapts=False)


def _without_means(spec: JobSpec) -> JobSpec:
    """The spec without the presets of `_means`, so that a filled spec gives the same reasons again."""
    return with_settings(spec, MEANS) or spec


Stage = Callable[..., Iterator[Preset]]
STAGES_BY_POOL: Final[tuple[Stage, ...]] = (_engine, _devices, _means, _batch, _replicas)


def _fewest_trainers(spec: JobSpec, shape: ModelShape, pool: PoolSize, most: int) -> int | None:
    for count in _powers_of_two(most):
        candidate = with_settings(spec, {TRAINER: count})
        if candidate is None:
            continue
        if trainer_need(shape, plan_trainer(candidate, shape)).num_bytes <= pool.device_bytes:
            return count
    return None


def _fewest_shards(spec: JobSpec, shape: ModelShape, pool: PoolSize) -> int | None:
    if spec.rollout.engine != "vllm":
        return None
    enough = FEWEST_SEQUENCES * ReplicaPlan.of_spec(spec, shape).longest
    for count in _powers_of_two(min(pool.num_devices, MOST_DEVICES)):
        if why_not_shardable(shape, count) is None and _cache_tokens(spec, shape, count, pool) >= enough:
            return count
    return None


def _cache_tokens(spec: JobSpec, shape: ModelShape, num_devices: int, pool: PoolSize) -> int:
    """Tokens that fit the cache of a replica of `num_devices`, next to everything else in their memory."""
    plan = replace(ReplicaPlan.of_spec(spec, shape), num_devices=num_devices, max_batch=MOST_SEQUENCES)
    of_token = kv_bytes_of_token(shard_of(shape, num_devices))
    cache_bytes = backed_tokens(shard_of(shape, num_devices), plan) * of_token
    return max(0, pool.device_bytes - replica_need(shape, plan).num_bytes + cache_bytes) // of_token


def _powers_of_two(most: int) -> Iterator[int]:
    count = 1
    while count <= most:
        yield count
        count *= 2
