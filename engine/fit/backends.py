"""What each backend of the trainer would take of each device, and send: the same job by torch (FSDP2) and by DeepSpeed;
and of several hosts, with one copy of everything or with a copy on each.

For choosing one: backends that cannot train this job are left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from engine.fit.need import GB, gigabytes
from engine.fit.plan import DEVICES_PER_HOST, PROMPT_TOKENS, Division, TrainerPlan, largest_even_share
from engine.fit.planning import plan_trainer
from engine.fit.remedies import Change, with_changes
from engine.fit.shape import ModelShape
from engine.fit.trainer import affords_one_sum, trained_weights, trainer_need
from engine.spec.job import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    words: str
    needed: int
    """By each device, margins included."""
    sent: int
    """Of an update of one micro-batch, by each device."""

    @property
    def line(self) -> str:
        return (
            f"{self.words}: {gigabytes(self.needed)}, and {self.sent / GB:.1f} GB sent in an update of one micro-batch"
        )


def backend_lines(
    spec: JobSpec, shape: ModelShape, *, prompt_tokens: int = PROMPT_TOKENS, teacher: ModelShape | None = None
) -> list[str]:
    """None where there is no choice."""
    choices = list(_choices(spec, shape, prompt_tokens, teacher))
    return (
        ["Each device would need, by trainer.backend:", *(f"    {each.line}" for each in choices)]
        if choices[1:]
        else []
    )


def _choices(spec: JobSpec, shape: ModelShape, prompt_tokens: int, teacher: ModelShape | None) -> Iterator[Choice]:
    if spec.trainer_devices < 2 or shape.num_mixtures:  # DeepSpeed trains dense models
        return
    torch: dict[str, Any] = {"trainer.backend": "torch"}
    stages = [{"trainer.backend": "deepspeed", "trainer.zero_stage": stage} for stage in (1, 2, 3)]
    for settings in (torch, *stages):
        plan = _plan_with(settings, spec, shape, prompt_tokens=prompt_tokens, teacher=teacher)
        if plan is not None:
            yield Choice(
                words=", ".join(f"{path} {value}" for path, value in settings.items()),
                needed=trainer_need(shape, plan).num_bytes,
                sent=sent_bytes(shape, plan),
            )


def _plan_with(settings: dict[str, Any], spec: JobSpec, shape: ModelShape, **options: Any) -> TrainerPlan | None:
    """The plan of the spec with these settings, by `plan_trainer`; None if it is invalid with them."""
    changed = with_changes(spec, [Change(words="", settings=settings)])
    return None if changed is None else plan_trainer(changed, shape, **options)


def sent_bytes(shape: ModelShape, plan: TrainerPlan) -> int:
    """(n - 1) / n of: FSDP 2·c·P gathered and 4·T added up; ZeRO 1 and 2 4·T added up and 4·T weights back; ZeRO 3
    8·P gathered and 4·T added up. What a recomputed layer needs again is gathered already. Where hosts have copies,
    their sums, too: 2·(H - 1) / H of 4·T / n, for H copies."""
    trained, num_weights = trained_weights(shape, plan), shape.num_weights
    gathered: dict[Division, int] = {
        "whole": 0,
        "fsdp": 2 * plan.product_bytes * num_weights,
        "zero1": 4 * trained,
        "zero2": 4 * trained,
        "zero3": 8 * num_weights,
    }
    each, copies = plan.num_shards, plan.num_devices // plan.num_shards
    between_copies = 2 * (4 * trained // each) * (copies - 1) // copies
    return (gathered[plan.division] + 4 * trained) * (each - 1) // each + between_copies


def host_lines(
    spec: JobSpec,
    shape: ModelShape,
    *,
    prompt_tokens: int = PROMPT_TOKENS,
    teacher: ModelShape | None = None,
    devices_per_host: int = DEVICES_PER_HOST,
    device_bytes: int = 0,
) -> list[str]:
    """None where the trainer is on one host, or has no choice."""
    if spec.trainer.backend != "torch" or spec.trainer_devices <= devices_per_host:
        return []
    lines = []
    for within in ("all", "node"):
        plan = _plan_with(
            {"trainer.shard_within": within},
            spec,
            shape,
            prompt_tokens=prompt_tokens,
            teacher=teacher,
            devices_per_host=devices_per_host,
        )
        if plan is None:
            return []
        if spec.trainer.gradient_sums is None:
            plan = replace(plan, sums_once=affords_one_sum(shape, plan, device_bytes))
        need = gigabytes(trainer_need(shape, plan).num_bytes)
        one, eight = (
            between_hosts_bytes(shape, plan, num_passes=count, devices_per_host=devices_per_host) / GB
            for count in (1, 8)
        )
        lines.append(
            f"    {within}: {need}, and a host sends the others at least {one:.1f} GB in an update of one micro-batch, "
            f"{eight:.1f} GB of eight"
        )
    return [f"Each device would need, by trainer.shard_within, with {devices_per_host} devices per host:", *lines]


def sum_lines(spec: JobSpec, shape: ModelShape, plan: TrainerPlan, device_bytes: int) -> list[str]:
    """What summing gradients once an update takes and saves. None where there is nothing to sum, or no choice."""
    if plan.division != "fsdp":
        return []
    later, sooner = (trainer_need(shape, replace(plan, sums_once=once)).num_bytes for once in (True, False))
    fits = affords_one_sum(shape, plan, device_bytes)
    chosen = spec.trainer.gradient_sums or ("update" if fits else "micro_batch")
    sent = f"{sums_bytes(shape, plan) / GB:.1f} GB of gradients"
    return [
        f"Gradients are summed over the devices by trainer.gradient_sums {chosen}. Each device would need:",
        f"    micro_batch: {gigabytes(sooner)}, and sends {sent} per micro-batch",
        f"    update: {gigabytes(later)}, and sends as much once per update",
    ]


def sums_bytes(shape: ModelShape, plan: TrainerPlan) -> int:
    """(n - 1) / n of 4·T, within a copy."""
    return 4 * trained_weights(shape, plan) * (plan.num_shards - 1) // plan.num_shards


def between_hosts_bytes(shape: ModelShape, plan: TrainerPlan, *, num_passes: int, devices_per_host: int) -> int:
    """The least that a host sends in an update of so many micro-batches, (H - 1) / H of: with one copy, 2·c·P gathered
    for each of them, and 4·T summed for each or once; with a copy on each host, 2·4·T, once."""
    trained = trained_weights(shape, plan)
    num_hosts = plan.num_devices // largest_even_share(plan.num_devices, devices_per_host)
    sent = 8 * trained
    if plan.devices_per_host is None:
        num_sums = 1 if plan.sums_once else num_passes
        sent = num_passes * 2 * plan.product_bytes * shape.num_weights + num_sums * 4 * trained
    return sent * (num_hosts - 1) // num_hosts
