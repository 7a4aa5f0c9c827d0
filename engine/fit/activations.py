"""Bytes that autograd keeps of a layer from its forward to its backward pass, a token; and what the passes work with.

Term by term from engine/models/decoder.py, for products in float32, or in bfloat16 with norms in float32. c is the
bytes of a product's element: 4 or 2. Letters as in shape.py.

    norm        input 4·D    normalised 4·D    output, for the product, c·D
    qkv         c·Q; the values stay a part of it until their gradient
    head norms  normalised 4·(A + K·E); with bfloat16 products their input in float32, as much again
    turned      queries and keys as attention reads them c·(A + K·E)
    values      c·K·E again where sequences are shared: what attention reads of them came from other devices
    attention   its output c·A and its logarithms 4·H    the rectangles joined c·A
    norm        as above
    MLP         gate and up c·2F    silu of the gate c·F    their product c·F

A device that fuses norms keeps the normalised values nowhere: there this is more than is kept, by a sixth at 8B.

Invariant: held against what autograd keeps of a real layer at several widths, within 5 % (tests/engine/fit); of
transformers' own classes within 7 %, since most have a projection where the decoder has a part of one: its values are
not kept with those of the others (float32: less), what it reads is cast for itself (bfloat16: more).
"""

from dataclasses import replace
from typing import Final

from engine.fit.plan import Activations, TrainerPlan
from engine.fit.shape import ModelShape

AFFORDABLE_BYTES: Final = 8 * 10**9


def layer_bytes(shape: ModelShape, plan: TrainerPlan, *, mixture: bool) -> int:
    """All of the above, a token."""
    mlp = mixture_bytes(shape, plan) if mixture else mlp_bytes(shape, plan)
    return attention_bytes(shape, plan) + mlp


def norm_bytes(shape: ModelShape, plan: TrainerPlan) -> int:
    """(8 + c)·D, and the length of each row."""
    return (8 + plan.product_bytes) * shape.width + 4


def attention_bytes(shape: ModelShape, plan: TrainerPlan) -> int:
    """Norm + c·(Q + (A + K·E) + 2A) + 4·H + head norms; for norms other than the layer's two, input and c·D each. Of a
    shared sequence its values too, and as many heads of keys and values as devices share it, if there are fewer."""
    turned, exchanged = shape.attention_width + shape.key_width, 0
    if plan.sequence_parallel > 1:
        dealt = shape.head_dim * max(shape.num_kv_heads, plan.sequence_parallel)
        exchanged = dealt + (dealt - shape.key_width)
    products = plan.product_bytes * (shape.projected_width + turned + exchanged + 2 * shape.attention_width)
    other_norms = (shape.num_norms - 2) * (4 + plan.product_bytes) * shape.width
    norms = norm_bytes(shape, plan) + other_norms + head_norm_bytes(shape, plan)
    return norms + products + 4 * shape.num_heads


def head_norm_bytes(shape: ModelShape, plan: TrainerPlan) -> int:
    """4·(A + K·E), twice with bfloat16 products, and the length of each head."""
    if not (shape.qk_norm or shape.wide_qk_norm):
        return 0
    copies = 1 if plan.products == "float32" else 2
    return 4 * (copies * (shape.attention_width + shape.key_width) + shape.num_heads + shape.num_kv_heads)


def mlp_bytes(shape: ModelShape, plan: TrainerPlan) -> int:
    """Norm + c·4F."""
    return norm_bytes(shape, plan) + 4 * plan.product_bytes * shape.mlp_width


def mixture_bytes(shape: ModelShape, plan: TrainerPlan) -> int:
    """Norm + c·k·(2D + 4M) + the router's probabilities 4·X + k places and weights.

    Of grouped products: the input once for each expert that a token meets, gates and ups, silu, product, output."""
    width, experts = shape.width, shape.experts_per_token
    products = plan.product_bytes * experts * (2 * width + 4 * shape.expert_width)
    return norm_bytes(shape, plan) + products + 4 * shape.num_experts + 40 * experts


def kept_bytes(shape: ModelShape, plan: TrainerPlan) -> int:
    """Of all layers, a token: everything; each layer's input, if they are recomputed; or of two layers, one at work and
    one on its way, if inputs are on the host."""
    if plan.recomputes:
        num_layers = min(2, shape.num_layers) if plan.activations == "offloaded" else shape.num_layers
        return num_layers * plan.residual_bytes * shape.width
    return sum(count * layer_bytes(shape, plan, mixture=mixture) for mixture, count in shape.kinds)


def affordable(shape: ModelShape, plan: TrainerPlan) -> Activations:
    """The default of a job: keep everything if that takes a tenth of an 80 GB device, on any device, so that the same
    job behaves the same everywhere."""
    everything = kept_bytes(shape, replace(plan, activations="kept")) * plan.tokens * plan.num_trained_models
    return "kept" if everything <= AFFORDABLE_BYTES else "recomputed"


def working_bytes(shape: ModelShape, plan: TrainerPlan) -> int:
    """Bytes a token that the backward pass of one layer adds to the kept ones: gradients of its output 4·D, and of
    the MLP's product, silu and ups c·3F less the product that is done with. Where layers are recomputed, the layer's
    activations first."""
    return max(
        _again_bytes(shape, plan, mixture=mixture) + 4 * shape.width + 2 * plan.product_bytes * inner
        for mixture, inner in _inner_widths(shape)
    )


def gates_bytes(shape: ModelShape, plan: TrainerPlan) -> int:
    """The same when gates and ups go backward: their gradient c·2F is there, and all four of the MLP's are gone."""
    kept = 0 if plan.recomputes else 2 * plan.product_bytes
    return max(
        max(_again_bytes(shape, plan, mixture=mixture) - 2 * plan.product_bytes * inner, kept * inner) + 4 * shape.width
        for mixture, inner in _inner_widths(shape)
    )


def _again_bytes(shape: ModelShape, plan: TrainerPlan, *, mixture: bool) -> int:
    return layer_bytes(shape, plan, mixture=mixture) if plan.recomputes else 0


def _inner_widths(shape: ModelShape) -> tuple[tuple[bool, int], ...]:
    """(is it a mixture, F, or k·M) of each kind of layer."""
    both = ((False, shape.mlp_width), (True, shape.experts_per_token * shape.expert_width))
    return tuple((mixture, inner) for mixture, inner in both if mixture in dict(shape.kinds))
