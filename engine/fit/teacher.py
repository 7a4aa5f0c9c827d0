"""What a teacher adds to each device of a trainer: its weights, and its forward passes.

Of a policy's own passes without gradients nothing is counted: training it needs more of everything. A teacher may be
many times as large. Letters as in shape.py; c is the bytes of a product's element.

Invariant: held against the peak of such a pass at true widths (tests/engine/fit).
"""

from dataclasses import replace

from engine.fit.need import Phase, Term, in_words, share
from engine.fit.plan import TrainerPlan
from engine.fit.shape import ModelShape
from engine.fit.weights import (
    begin_bytes,
    coming_bytes,
    gathered_bytes,
    gathered_layer_bytes,
    keeps_casts,
    rounded_head_bytes,
    weight_bytes,
)


def teacher_terms(plan: TrainerPlan) -> tuple[Term, ...]:
    teacher = plan.teacher
    if teacher is None:
        return ()
    how = f"of {in_words(teacher.num_weights)}"
    return (Term(what="the teacher", num_bytes=teacher_bytes(teacher, plan), how=how),)


def asking_phases(plan: TrainerPlan) -> tuple[Phase, ...]:
    teacher = plan.teacher
    if teacher is None:
        return ()
    tokens, chunk = plan.tokens, f"{min(plan.tokens, plan.chunk_tokens):,} tokens × {teacher.vocab_size:,}"
    asked = replace(plan, lora_rank=0, activations="recomputed")  # whose weights are handled as in any such pass
    there = (
        Term(what="the teacher's weights, gathered for all matrix products", num_bytes=gathered_bytes(teacher, asked)),
        Term(what="rotary factors", num_bytes=tokens * 8 * teacher.head_dim),
    )
    of_token = layer_pass_bytes(teacher, plan)
    layer = (
        Term(what="a layer's weights, gathered or cast", num_bytes=layer_weight_bytes(teacher, asked)),
        Term(what="one layer's activations", num_bytes=tokens * of_token, how=f"{of_token:,} B per token"),
    )
    head = (
        Term(what="the last layer's output and its norm", num_bytes=tokens * rows_pass_bytes(teacher, plan)),
        Term(what="the head's weights, cast", num_bytes=rounded_head_bytes(teacher, asked)),
        Term(what="the last layer's weights, not yet freed", num_bytes=coming_bytes(teacher, asked)),
        Term(what="log-probs and their intermediates", num_bytes=scored_bytes(teacher, plan), how=chunk),
    )
    begins = Term(what="its embedding, head and a layer, gathered", num_bytes=begin_bytes(teacher, asked))
    return (
        Phase(what="at the start of the teacher's forward pass", terms=(begins,)),
        Phase(what="during a layer of the teacher", terms=(*there, *layer)),
        Phase(what="during the teacher's head", terms=(*there, *head)),
    )


def teacher_bytes(teacher: ModelShape, plan: TrainerPlan) -> int:
    """As the weights; with FSDP as they are stored, and divided."""
    if plan.division == "fsdp":
        return share(teacher.stored_bytes * teacher.num_weights, plan.num_devices)
    return weight_bytes(teacher.num_weights, plan)


def layer_weight_bytes(shape: ModelShape, plan: TrainerPlan) -> int:
    """Two layers that are gathered; of those that lie here, one matrix at a time is rounded."""
    if plan.division == "fsdp" or keeps_casts(plan):
        return gathered_layer_bytes(shape, plan)
    return 2 * shape.largest_matrix if plan.casts else 0


def layer_pass_bytes(shape: ModelShape, plan: TrainerPlan) -> int:
    """In the dtype that goes from layer to layer: input, its norm and the sum after attention, 3·D, and what was
    turned, A + K·E. In that of products: Q + A of attention, which are there to the layer's end, and 4F of the MLP, or
    k·(2D + 4M) of a mixture."""
    turned = shape.attention_width + shape.key_width
    attention = shape.projected_width + shape.attention_width
    dense = 4 * shape.mlp_width if shape.num_dense else 0
    mixed = shape.experts_per_token * (2 * shape.width + 4 * shape.expert_width) if shape.num_mixtures else 0
    products = plan.product_bytes * (attention + max(dense, mixed))
    return plan.residual_bytes * (3 * shape.width + turned) + products


def rows_pass_bytes(shape: ModelShape, plan: TrainerPlan) -> int:
    """(8 + c)·D: output, its requested rows, and these normalised."""
    return (8 + plan.product_bytes) * shape.width


def scored_bytes(shape: ModelShape, plan: TrainerPlan) -> int:
    """V × tokens of a chunk × 8: logits and log-probs, then these and probabilities."""
    return 8 * min(plan.tokens, plan.chunk_tokens) * shape.vocab_size
