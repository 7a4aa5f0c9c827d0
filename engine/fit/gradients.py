"""Gradients from where they are made to where they are added up over the devices.

    FSDP      a layer's, in the dtype of products ──▶ float32 of all of it, on its way ──▶ this device's rows of the sum
              while the next layer goes backward, what is on its way is there still; embedding and head are last
    others    one matrix at a time ──▶ added to what is there, or with ZeRO sent by the bucket

D, F, V, N as in shape.py; L is the number of weights of a layer, R of embedding and head, c the bytes of a product's
element. Of an adapter L and R are its own, and those of the merged matrices are let go one by one.
"""

from typing import Final

from engine.fit.need import share
from engine.fit.plan import TrainerPlan
from engine.fit.shape import ModelShape

# DeepSpeed's own number of elements: gradients that are sent together.
BUCKET_NUMEL: Final = 500_000_000


def last_gradient_bytes(shape: ModelShape, plan: TrainerPlan) -> int:
    """Of the MLP's second matrix, half of the first: as it is computed and as float32, (c + 4)·F·D. With FSDP c·F·D,
    plus the waiting gradients."""
    own = shape.largest_matrix // 2
    if plan.division == "fsdp" and not plan.lora_rank:
        return plan.product_bytes * own + waiting_bytes(shape, plan)
    return _made_bytes(plan) * own + waiting_bytes(shape, plan)


def largest_gradient_bytes(shape: ModelShape, plan: TrainerPlan) -> int:
    """(c + 4) of the largest matrix; with FSDP c·L, which stay until all are there, plus the waiting gradients."""
    if plan.division == "fsdp" and not plan.lora_rank:
        return plan.product_bytes * shape.largest_layer + waiting_bytes(shape, plan)
    return _made_bytes(plan) * shape.largest_matrix + waiting_bytes(shape, plan)


def waiting_bytes(shape: ModelShape, plan: TrainerPlan) -> int:
    """With FSDP: 4·L of the layer before, on their way, and c·V·D of the head, whose turn comes last. With ZeRO a
    bucket, when it is full."""
    if plan.division != "fsdp":
        return rearranged_bytes(shape, plan)
    head = 0 if plan.lora_rank else plan.product_bytes * shape.vocab_size * shape.width
    return head + (sent_bytes(shape, plan) if shape.num_layers > 1 else 0)


def rearranged_bytes(shape: ModelShape, plan: TrainerPlan) -> int:
    """ZeRO: 4·min(T, 500 million), a bucket once more, in the order in which it is sent."""
    if not plan.division.startswith("zero"):
        return 0
    trained = shape.adapter_weights(plan.lora_rank) if plan.lora_rank else shape.num_weights
    return 4 * min(trained, BUCKET_NUMEL)


def sent_bytes(shape: ModelShape, plan: TrainerPlan) -> int:
    """4·L"""
    if plan.lora_rank:
        return -(-4 * shape.adapter_weights(plan.lora_rank) // shape.num_layers)
    return 4 * shape.largest_layer


def _made_bytes(plan: TrainerPlan) -> int:
    """A gradient, before it is added to the others."""
    return 4 if plan.products == "float32" else plan.product_bytes + 4


def embedding_gradient_bytes(shape: ModelShape, plan: TrainerPlan) -> int:
    """Of every word, whichever the pass has: 4·V·D; if it is also the head, the head's too, and their sum. With
    FSDP c·V·D each, the head's in any case, and 4·L of the first layer on their way."""
    if plan.lora_rank:
        return 0
    table = shape.vocab_size * shape.width
    if plan.division == "fsdp":
        return plan.product_bytes * table * (3 if shape.tied else 2) + sent_bytes(shape, plan)
    return 4 * table * (3 if shape.tied else 1)


def table_gradient_bytes(shape: ModelShape, plan: TrainerPlan) -> int:
    """With FSDP (c + 4)·R: of embedding and head, and these as float32 on their way; or 4·R, what comes of it, 4·R / n,
    and one table's of these, which is added to what is there. With ZeRO the last bucket."""
    if plan.division != "fsdp":
        return rearranged_bytes(shape, plan)
    if plan.lora_rank:
        return 0
    tables, one = shape.table_weights, shape.vocab_size * shape.width
    return max(plan.product_bytes * tables, share(4 * (tables + one), plan.num_shards)) + 4 * tables


def head_gradient_bytes(shape: ModelShape, plan: TrainerPlan, *, copies: int) -> int:
    """4·V·D of all chunks, and c·V·D of the one at work. An adapter's base has none."""
    of_one = plan.product_bytes if copies > 1 else 0
    return 0 if plan.lora_rank else shape.vocab_size * shape.width * (4 + of_one)
