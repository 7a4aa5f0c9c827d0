"""A model's weights on a device of a trainer: as they lie there, and as products are computed with them.

P is the number of weights, L of a layer's, n of devices that have a copy together, c the bytes of a product's element.
"""

from typing import Final

from engine.fit.need import share
from engine.fit.plan import TrainerPlan
from engine.fit.shape import ModelShape

# DeepSpeed's own number of elements: gathered weights that may stay.
LIVE_NUMEL: Final = 1_000_000_000
# Likewise of weights that are fetched while others compute.
FETCHED_NUMEL: Final = 50_000_000


def weight_bytes(num_weights: int, plan: TrainerPlan) -> int:
    """4·P; with FSDP and ZeRO 3 4·P / n."""
    return share(4 * num_weights, plan.num_shards) if plan.division in ("fsdp", "zero3") else 4 * num_weights


def gathered_bytes(shape: ModelShape, plan: TrainerPlan) -> int:
    """What products are computed with through a whole pass, where that is not the weights as they lie.

    FSDP: embedding and head, c·R. ZeRO 3: up to a thousand million weights of each trained model that DeepSpeed does
    not let go, 4 B each, and what it fetches before its turn, up to 50 million of layers; every weight where float32
    layers are not recomputed, since each product keeps its own. Autocast, unless layers are recomputed and it has no
    cache: 2 B of each weight that is multiplied, which an embedding apart is not."""
    if plan.division == "fsdp":
        return plan.product_bytes * shape.table_weights
    gathered = 0
    if plan.division == "zero3" and plan.num_devices > 1:
        keeps_all = not plan.recomputes and plan.products == "float32"
        gathered = 4 * (shape.num_weights if keeps_all else min(shape.num_weights, LIVE_NUMEL))
        gathered = plan.num_trained_models * gathered + 4 * min(shape.num_weights - shape.table_weights, FETCHED_NUMEL)
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


def coming_bytes(shape: ModelShape, plan: TrainerPlan) -> int:
    """FSDP, while the head computes: the layer before it is on its way back, or hardly gone, c·L."""
    return plan.product_bytes * shape.largest_layer if plan.division == "fsdp" else 0


def begin_bytes(shape: ModelShape, plan: TrainerPlan) -> int:
    """FSDP: embedding and head as gathered, c·2R with their copies for products, until the first layer was gathered and
    copied, c·2L, and its input."""
    if plan.division != "fsdp":
        return 0
    weights = 2 * (gathered_bytes(shape, plan) + coming_bytes(shape, plan))
    return weights + plan.tokens * plan.residual_bytes * shape.width


def rounded_head_bytes(shape: ModelShape, plan: TrainerPlan) -> int:
    """2·V·D by autocast that keeps nothing."""
    return 2 * shape.vocab_size * shape.width if plan.casts and not keeps_casts(plan) else 0


def keeps_casts(plan: TrainerPlan) -> bool:
    return plan.casts and (plan.caches_casts or not plan.recomputes)
