"""What would make a job fit: changes of its spec, least harm first, and the smallest set of them that is enough.

    what                      costs
    sums of each micro-batch  as many sums over the devices as micro-batches
    layers recomputed         a third of the arithmetic more; with their inputs on the host, copies too
    smaller micro-batches     fuller matrices
    one copy for all hosts    gathers between hosts
    small moments             exactness
    moments on the host       a copy of them a step
    sequence parallel         an exchange in every layer
    more trainer devices      devices
    more devices a replica    devices
    LoRA                      what can be learned

Fewer changes come before more, less harm before more harm, and of one change its smallest dose first. The head is not
among them: logits exist of one chunk of tokens at a time in every trainer.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from typing import Any, Final

from engine.fit.plan import Activations, Moments, TrainerPlan
from engine.fit.replica import ReplicaPlan
from engine.fit.shape import ModelShape
from engine.fit.shards import MOST_DEVICES, why_not_shardable
from engine.spec.job import JobSpec
from engine.spec.settings.paths import with_settings

LARGEST_FACTOR: Final = 64
ADAPTER_RANK: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    words: str
    settings: Mapping[str, Any]
    """Path in a spec and value."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Of a trainer's plan that it changes."""


Doses = tuple[Change, ...]
"""Of one kind of change, the smallest first."""
Changes = tuple[Change, ...]
"""Made together."""


def trainer_remedies(
    plan: TrainerPlan, *, longest: int, most_devices: int | None = None, adapts: bool = True
) -> tuple[Doses, ...]:
    """`most_devices`: that the trainer can have; None: not known. `adapts`: an adapter may be trained instead."""
    more = _more_devices(plan)
    return (
        _earlier_sums(plan),
        _recomputed(plan),
        _smaller_batches(plan, longest),
        _one_copy(plan),
        _small_moments(plan),
        _moments_on_host(plan),
        _shared_sequences(plan),
        tuple(each for each in more if most_devices is None or each.fields["num_devices"] <= most_devices),
        _adapter(plan) if adapts else (),
    )


def replica_remedies(plan: ReplicaPlan, shape: ModelShape) -> tuple[Doses, ...]:
    fewer_versions = tuple(
        Change(
            words=f"hold {slots} version{'s' * (slots > 1)} per replica (rollout.weight_slots {slots})",
            settings={"rollout.weight_slots": slots},
        )
        for slots in range(plan.weight_slots - 1, 0, -1)
    )
    smaller_caches = tuple(
        Change(
            words=f"keep {tokens:,} tokens in the KV cache (rollout.kv_tokens {tokens})",
            settings={"rollout.kv_tokens": tokens},
        )
        for tokens in (plan.kv_tokens // factor for factor in _factors())
        if tokens
    )
    fewer_rows = tuple(
        Change(
            words=f"decode at most {rows:,} sequences at once (rollout.max_batch {rows})",
            settings={"rollout.max_batch": rows},
        )
        for rows in (plan.max_batch // factor for factor in _factors())
        if rows
    )
    return fewer_versions, smaller_caches, fewer_rows, _more_shards(plan, shape)


def _more_shards(plan: ReplicaPlan, shape: ModelShape) -> Doses:
    by_vllm = {} if plan.is_vllm else {"rollout.engine": "vllm"}
    how = ", rollout.engine vllm" if by_vllm else ""
    return tuple(
        Change(
            words=f"split each replica over {devices} devices (resources.devices_per_replica {devices}{how})",
            settings={"resources.devices_per_replica": devices, **by_vllm},
        )
        for devices in (plan.num_devices * factor for factor in _factors())
        if devices <= MOST_DEVICES and why_not_shardable(shape, devices) is None
    )


def smallest(remedies: Sequence[Doses], *, is_enough: Callable[[Changes], bool]) -> Changes | None:
    return next((changes for changes in _all_sets(remedies) if is_enough(changes)), None)


def changed(plan: TrainerPlan, shape: ModelShape, changes: Sequence[Change]) -> TrainerPlan | None:
    """None: these do not go together, or not with the model."""
    fields = {name: value for change in changes for name, value in change.fields.items()}
    num_devices = fields.get("num_devices", plan.num_devices)
    sequence_parallel = fields.get("sequence_parallel", plan.sequence_parallel)
    division = fields.get("division", plan.division)
    if num_devices % sequence_parallel or (sequence_parallel > 1 and division != "fsdp"):
        return None
    if not shape.can_deal_heads(sequence_parallel):
        return None
    return replace(plan, **fields)


def with_changes(spec: JobSpec, changes: Sequence[Change]) -> JobSpec | None:
    """None: the spec would be refused, so the changes are not advised."""
    return with_settings(spec, {path: value for change in changes for path, value in change.settings.items()})


def _all_sets(remedies: Sequence[Doses]) -> Iterator[Changes]:
    for count in range(1, len(remedies) + 1):
        for chosen in combinations(remedies, count):
            yield from product(*chosen)


def _factors() -> Iterator[int]:
    factor = 2
    while factor <= LARGEST_FACTOR:
        yield factor
        factor *= 2


def _earlier_sums(plan: TrainerPlan) -> Doses:
    if not plan.sums_once:
        return ()
    change = Change(
        words="sum gradients after each micro-batch (trainer.gradient_sums micro_batch)",
        settings={"trainer.gradient_sums": "micro_batch"},
        fields={"sums_once": False},
    )
    return (change,)


def _recomputed(plan: TrainerPlan) -> Doses:
    doses: dict[Activations, str] = {
        "recomputed": "recompute each layer in the backward pass",
        "offloaded": "keep the inputs of layers in host memory",
    }
    order = list(doses)
    left = order[order.index(plan.activations) + 1 :] if plan.recomputes else order
    return tuple(
        Change(
            words=f"{doses[how]} (trainer.activations {how})",
            settings={"trainer.activations": how},
            fields={"activations": how},
        )
        for how in left
    )


def _smaller_batches(plan: TrainerPlan, longest: int) -> Doses:
    doses = [plan.pass_tokens // factor for factor in _factors() if plan.pass_tokens // factor > longest]
    if plan.pass_tokens > longest:
        doses.append(longest)
    return tuple(
        Change(
            words=f"use {tokens:,} tokens per pass (trainer.micro_batch_tokens {tokens})",
            settings={"trainer.micro_batch_tokens": tokens},
            fields={"pass_tokens": tokens},
        )
        for tokens in doses
    )


def _one_copy(plan: TrainerPlan) -> Doses:
    if plan.num_shards == plan.num_devices:
        return ()
    change = Change(
        words="shard weights, gradients and moments among all trainer devices (trainer.shard_within all)",
        settings={"trainer.shard_within": "all"},
        fields={"devices_per_host": None},
    )
    return (change,)


def _small_moments(plan: TrainerPlan) -> Doses:
    every: tuple[Moments, ...] = ("float32", "bfloat16", "float8")
    return tuple(
        Change(
            words=f"keep moments in {moments} (optimizer.moments {moments})",
            settings={"optimizer.moments": moments},
            fields={"moments": moments},
        )
        for moments in every[every.index(plan.moments) + 1 :]
    )


def _moments_on_host(plan: TrainerPlan) -> Doses:
    if plan.offloads_moments:
        return ()
    change = Change(
        words="keep moments in the host's memory (optimizer.offload true)",
        settings={"optimizer.offload": True},
        fields={"offloads_moments": True},
    )
    return (change,)


def _shared_sequences(plan: TrainerPlan) -> Doses:
    return tuple(
        Change(
            words=f"split each sequence over {ranks} devices (trainer.sequence_parallel {ranks})",
            settings={"trainer.sequence_parallel": ranks},
            fields={"sequence_parallel": ranks},
        )
        for ranks in (plan.sequence_parallel * factor for factor in _factors())
    )


def _more_devices(plan: TrainerPlan) -> Doses:
    if plan.division != "whole":
        return tuple(_devices(plan.num_devices * factor, {}, plan.division) for factor in _factors())
    zero3 = {"trainer.backend": "deepspeed", "trainer.zero_stage": 3}
    return (
        *(_devices(plan.num_devices * factor, {}, "fsdp") for factor in _factors()),
        *(_devices(plan.num_devices * factor, zero3, "zero3") for factor in _factors()),
    )


def _devices(num_devices: int, settings: Mapping[str, Any], division: str) -> Change:
    how = ", trainer.backend deepspeed, trainer.zero_stage 3" if settings else ""
    return Change(
        words=f"train on {num_devices} devices (resources.trainer_devices {num_devices}{how})",
        settings={"resources.trainer_devices": num_devices, **settings},
        fields={"num_devices": num_devices, "division": division},
    )


def _adapter(plan: TrainerPlan) -> Doses:
    if plan.lora_rank:
        return ()
    change = Change(
        words=f"train an adapter instead of all weights (trainer.lora_rank {ADAPTER_RANK})",
        settings={"trainer.lora_rank": ADAPTER_RANK},
        fields={"lora_rank": ADAPTER_RANK},
    )
    return (change,)
