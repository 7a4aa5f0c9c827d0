"""A model's weights on a device of a trainer: as they lie there, and as products are computed with them.

P is the number of weights, L of a layer's, n of devices, c the bytes of a product's element.
"""

from typing import Final

from engine.spec.fit.need import share
from engine.spec.fit.plan import TrainerPlan
from engine.spec.fit.shape import ModelShape

# DeepSpeed's own number of elements: gathered weights that may stay.
LIVE_NUMEL: Final = 1_000_000_000


def weight_bytes(num_weights: int, plan: TrainerPlan) -> int:
    """4·P; with FSDP and ZeRO 3 4·P / n."""
    return share(4 * num_weights, plan.num_devices) if plan.division in ("fsdp", "zero3") else 4 * num_weights


def gathered_bytes(shape: ModelShape, plan: TrainerPlan) -> int:
    """What products are computed with through a whole pass, where that is not the weights as they lie.

    FSDP: embedding and head, c·V·D…. ZeRO 3: up to a thousand million weights that DeepSpeed does not let go, 4 B each;
    every weight where float32 layers are not recomputed, since each product keeps its own. Autocast, unless layers are
    recomputed and it has no cache: 2 B of each weight that is multiplied, which an embedding apart is not."""
    if plan.division == "fsdp":
        return plan.product_bytes * shape.table_weights
    gathered = 0
    if plan.division == "zero3" and plan.num_devices > 1:
        keeps_all = not plan.recomputes and plan.products == "float32"
        gathered = 4 * (shape.num_weights if keeps_all else min(shape.num_weights, LIVE_NUMEL))
    if keeps_casts(plan):
        gathered += 2 * (shape.num_weights - (0 if shape.tied else shape.vocab_size * shape.width))
    return gathered


def gathered_layer_bytes(shape: ModelShape, plan: TrainerPlan) -> int:
    """FSDP: two layers, one at work and the next on its way, c·2L. Autocast that keeps nothing: 2·L. An adapter is
    merged into one layer at a time, (4 + c)·L."""
    layer = shape.largest_layer
    merged = (4 + plan.product_bytes) * layer if plan.lora_rank else 0
    if plan.division == "fsdp":
        return 2 * plan.product_bytes * layer + merged
    return (2 * layer if plan.casts and not keeps_casts(plan) else 0) + merged


def rounded_head_bytes(shape: ModelShape, plan: TrainerPlan) -> int:
    """2·V·D by autocast that keeps nothing."""
    return 2 * shape.vocab_size * shape.width if plan.casts and not keeps_casts(plan) else 0


def keeps_casts(plan: TrainerPlan) -> bool:
    return plan.casts and (plan.caches_casts or not plan.recomputes)
