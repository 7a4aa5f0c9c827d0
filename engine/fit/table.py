"""What fits: models × trainer devices × lengths of a sequence, and by which means.

FSDP, products in bfloat16, layers recomputed, a pass of one sequence. Each cell is the first that fits of: as it is,
moments in bfloat16, moments on the host; then the same with each sequence on more and more devices (sp). All devices
are the trainer's; replicas have their own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from engine.fit.known_models import KNOWN_CONFIGS, known_shape
from engine.fit.need import GB
from engine.fit.plan import CHUNK_TOKENS, TrainerPlan
from engine.fit.shape import ModelShape
from engine.fit.trainer import trainer_need

NUM_DEVICES: Final = (8, 16, 64)
DEVICE_GB: Final = (80, 141)
LENGTHS: Final = (8_192, 32_768, 131_072)


def table_lines() -> list[str]:
    head = ["model", "GPUs", *(f"{gb} GB, {length // 1_024}k" for gb in DEVICE_GB for length in LENGTHS)]
    rows = [
        [name, str(num_devices), *(_cell(known_shape(name), num_devices, gb, length) for gb, length in _columns())]
        for name in KNOWN_CONFIGS
        for num_devices in NUM_DEVICES
    ]
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    return [_padded(head, widths), *(_padded(row, widths) for row in rows)]


def first_that_fits(
    shape: ModelShape, *, num_devices: int, device_bytes: int, length: int
) -> tuple[TrainerPlan, int] | None:
    """The means, and what each device needs, margins included."""
    for plan in _plans(num_devices=num_devices, length=length):
        needed = trainer_need(shape, plan).num_bytes
        if needed <= device_bytes and shape.can_deal_heads(plan.sequence_parallel):
            return plan, needed
    return None


def _plans(*, num_devices: int, length: int) -> Iterator[TrainerPlan]:
    plain = TrainerPlan(
        pass_tokens=length,
        chunk_tokens=CHUNK_TOKENS,
        num_devices=num_devices,
        division="fsdp",
        activations="recomputed",
    )
    means = (plain, replace(plain, moments="bfloat16"), replace(plain, offloads_moments=True))
    ranks = 1
    while ranks <= num_devices:
        for plan in means:
            yield replace(plan, sequence_parallel=ranks)
        ranks *= 2


def _columns() -> Iterator[tuple[int, int]]:
    return ((gb, length) for gb in DEVICE_GB for length in LENGTHS)


def _cell(shape: ModelShape, num_devices: int, gb: int, length: int) -> str:
    found = first_that_fits(shape, num_devices=num_devices, device_bytes=gb * GB, length=length)
    if found is None:
        return "no"
    plan, needed = found
    means = [f"sp {plan.sequence_parallel}"] if plan.sequence_parallel > 1 else []
    means += ["bf16 moments"] if plan.moments == "bfloat16" else []
    means += ["offload"] if plan.offloads_moments else []
    return " ".join([f"{needed / GB:.0f} GB", *means])


def _padded(row: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
