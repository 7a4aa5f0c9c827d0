"""Bytes of the forward of one token in a rollout engine, without weights and cache. Letters as in shape.py; c is the
bytes of an element as it is stored."""

from engine.fit.shape import ModelShape


def vllm_pass_bytes(shape: ModelShape) -> int:
    """c·3·D, and whichever is more: attention's Q + 2·A + K·E and its output D, or, as its heads are turned, A again;
    or the MLP's D + 4·F, when attention's are gone. Of a mixture its router's 4·X, and 8·k. The token's id, position
    and slot. A GPU, that turns in place and multiplies as it takes the silu, has an A or an F less."""
    turned = shape.projected_width + 2 * shape.attention_width + shape.key_width
    attention = turned + max(shape.attention_width, shape.width)
    dense = shape.width + (4 * shape.mlp_width if shape.num_dense else 0)
    router = 4 * shape.num_experts + 8 * shape.experts_per_token
    return shape.stored_bytes * (3 * shape.width + max(attention, dense)) + router + 24


def own_pass_bytes(shape: ModelShape) -> int:
    """And 3·F of the MLP. Of a mixture k·(2·D + 5·M) instead, and 4·D for its router, which is float32, plus k
    indices and weights."""
    dense = shape.stored_bytes * 3 * shape.mlp_width if shape.num_dense else 0
    mixed = shape.experts_per_token * (shape.stored_bytes * (2 * shape.width + 5 * shape.expert_width) + 40)
    mixed += 4 * shape.width if shape.num_mixtures else 0
    return own_attention_bytes(shape) + max(dense, mixed)


def own_attention_bytes(shape: ModelShape) -> int:
    """Input, its norm, the sum after attention and what comes out, 4·D; Q + (A + K·E) + A of attention, which are there
    to the layer's end; two turns of its position. All in c, plus logarithms of attention, 4·H, and the token's id,
    position and slot."""
    turned = shape.attention_width + shape.key_width
    attention = shape.projected_width + turned + shape.attention_width
    return shape.stored_bytes * (4 * shape.width + attention + 2 * shape.head_dim) + 4 * shape.num_heads + 24
