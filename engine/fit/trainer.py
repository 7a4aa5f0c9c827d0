"""What each device of a trainer needs.

Each term is a function with its formula. P is the number of weights, T of those that are trained (an adapter's, or
all), n of devices that have a copy together, c the bytes of a product's element.
"""

from dataclasses import replace
from typing import Final

from engine.fit.activations import gates_bytes, kept_bytes, working_bytes
from engine.fit.gradients import (
    BUCKET_NUMEL,
    embedding_gradient_bytes,
    head_gradient_bytes,
    largest_gradient_bytes,
    last_gradient_bytes,
    table_gradient_bytes,
)
from engine.fit.margins import device_margins
from engine.fit.need import Need, Phase, Term, in_words, share
from engine.fit.plan import Activations, Moments, TrainerPlan
from engine.fit.shape import ModelShape
from engine.fit.teacher import asking_phases, teacher_terms
from engine.fit.weights import (
    begin_bytes,
    coming_bytes,
    gathered_bytes,
    gathered_layer_bytes,
    rounded_head_bytes,
    weight_bytes,
)

# Two numbers of each kind; those of 8 bits have an exponent for each block of 256.
MOMENT_BYTES: Final[dict[Moments, float]] = {"float32": 8.0, "bfloat16": 4.0, "float8": 2 * (1 + 1 / 256)}
KEPT: Final[dict[Activations, str]] = {
    "kept": "activations",
    "recomputed": "inputs",
    "offloaded": "prefetched inputs",
}
HANDED_OVER: Final = "while weights are published"


def trainer_need(shape: ModelShape, plan: TrainerPlan) -> Need:
    return Need(
        of=f"Each of {plan.num_devices} trainer devices" if plan.num_devices > 1 else "The trainer's device",
        always=(*_state(shape, plan), *_reference(shape, plan), *teacher_terms(plan), _positions(shape, plan)),
        phases=_phases(shape, plan),
        margins=device_margins(num_devices=plan.num_devices),
    )


def affords_one_sum(shape: ModelShape, plan: TrainerPlan, device_bytes: int) -> bool:
    """Whether devices of this size hold all gradients until an update's last micro-batch, margins included."""
    return trainer_need(shape, replace(plan, sums_once=True)).num_bytes <= device_bytes


def _state(shape: ModelShape, plan: TrainerPlan) -> tuple[Term, ...]:
    """Of the policy and of the critic."""
    models = [("", shape.num_weights, trained_weights(shape, plan))]
    if plan.has_critic:
        models.append(("the critic's ", critic_weights(shape), critic_weights(shape)))
    terms: list[Term] = []
    for whose, num_weights, num_trained in models:
        all_weights, trained = in_words(num_weights), in_words(num_trained)
        divided = f", divided by {plan.division} among {plan.num_shards}" if plan.num_devices > 1 else ""
        terms += [
            _term(f"{whose}weights, float32", weight_bytes(num_weights, plan), f"of {all_weights}{divided}"),
            _term(f"{whose}master weights of DeepSpeed", master_bytes(num_trained, plan), f"of {trained}"),
            _term(
                f"{whose}gradients, float32",
                gradient_bytes(shape, num_trained, plan),
                f"of {trained}{', whole until the last micro-batch' if plan.sums_once else ''}",
            ),
            _term(
                f"{whose}moments, {plan.moments}",
                moment_bytes(num_trained, plan),
                f"{MOMENT_BYTES[plan.moments]:.3g} B of {trained}",
            ),
        ]
    if plan.division.startswith("zero"):
        terms.append(_term("gradient bucket", bucket_bytes(shape, plan), "of DeepSpeed"))
    return tuple(terms)


def _reference(shape: ModelShape, plan: TrainerPlan) -> tuple[Term, ...]:
    if not plan.has_reference:
        return ()
    how = "the base model without its adapter" if plan.lora_rank else f"of {in_words(shape.num_weights)}"
    return (_term("the reference model", reference_bytes(shape, plan), how),)


def _positions(shape: ModelShape, plan: TrainerPlan) -> Term:
    """Sines and cosines of all that a model has: 8·E each, of every model that is there."""
    num_models = plan.num_trained_models + (plan.has_reference and not plan.lora_rank)
    own = num_models * 8 * shape.head_dim * shape.max_positions
    teachers = 0 if plan.teacher is None else 8 * plan.teacher.head_dim * plan.teacher.max_positions
    return _term("rotary tables", own + teachers)


def _phases(shape: ModelShape, plan: TrainerPlan) -> tuple[Phase, ...]:
    tokens, what = plan.tokens, KEPT[plan.activations]
    kept = _term(
        f"{what} of {shape.num_layers} layers",
        plan.num_trained_models * tokens * kept_bytes(shape, plan),
        f"{kept_bytes(shape, plan):,} B per token, {tokens:,} tokens"
        + (", of policy and critic" if plan.has_critic else ""),
    )
    there = (
        kept,
        _term(
            "rotary factors, and the gradient of the last layer",
            tokens * (plan.num_trained_models * 8 * shape.head_dim + 4 * shape.width),
        ),
        _term("the last layer of the critic, and its norm", tokens * row_bytes(shape, plan) * plan.has_critic),
        _term("weights gathered or cast for all matrix products", gathered_bytes(shape, plan)),
    )
    layer = _term("a layer's weights, gathered or cast", gathered_layer_bytes(shape, plan))
    product = (
        layer,
        _own_work(tokens, working_bytes(shape, plan)),
        _term("gradients of its last matrix", last_gradient_bytes(shape, plan)),
    )
    gates = (
        layer,
        _own_work(tokens, gates_bytes(shape, plan)),
        _term("gradients of its largest matrix", largest_gradient_bytes(shape, plan)),
    )
    embedding = (_term("gradients of embedding and head", embedding_gradient_bytes(shape, plan)),)
    tables = (_term("gradients being computed and reduced", table_gradient_bytes(shape, plan)),)
    return (
        Phase(
            what="at the start of a forward pass",
            terms=(_term("embedding, head and a layer, gathered", begin_bytes(shape, plan)),),
        ),
        Phase(what="at the start of a layer's backward pass", terms=(*there, *product)),
        Phase(what="during a layer's backward pass", terms=(*there, *gates)),
        *(Phase(what=what, terms=(*there, *terms)) for what, terms in _head(shape, plan)),
        Phase(what="during the embedding's backward pass", terms=(*there[1:], *embedding)),
        Phase(what="while the last gradients are reduced", terms=tables),
        *asking_phases(plan),
        Phase(
            what=HANDED_OVER,
            terms=(
                _term("the largest matrix, cast", published_bytes(shape, plan)),
                _term("a piece of it, for its checksum", SUM_BYTES),
            ),
        ),
    )


def _head(shape: ModelShape, plan: TrainerPlan) -> tuple[tuple[str, tuple[Term, ...]], ...]:
    chunk = f"{min(plan.tokens, plan.chunk_tokens):,} tokens × {shape.vocab_size:,}"
    rows = _term("the last layer's output, its norm and their gradient", plan.tokens * row_bytes(shape, plan))
    weights = _term("the head's weights, cast", rounded_head_bytes(shape, plan))
    coming = _term("the last layer's weights, being gathered", plan.num_trained_models * coming_bytes(shape, plan))
    logits = _term("logits and their intermediates", logits_bytes(shape, plan), chunk)
    gradient = _term("the gradient of its weights", head_gradient_bytes(shape, plan, copies=1))
    kept = _term("log-probs and their gradient", kept_logits_bytes(shape, plan), chunk)
    gradients = _term("the gradient of its weights, and a chunk's", head_gradient_bytes(shape, plan, copies=2))
    return (
        ("while the head's logits are recomputed", (rows, weights, coming, logits, gradient)),
        ("while the head's gradient is computed", (rows, weights, coming, kept, gradients)),
    )


def _own_work(tokens: int, of_token: int) -> Term:
    return _term("one layer's own activations and gradients", tokens * of_token, f"{of_token:,} B per token")


# State -----------------------------------------------------------------------------------------------------------


def trained_weights(shape: ModelShape, plan: TrainerPlan) -> int:
    """T: all, or rank·(rows + columns) of each matrix that has an adapter."""
    return shape.adapter_weights(plan.lora_rank) if plan.lora_rank else shape.num_weights


def critic_weights(shape: ModelShape) -> int:
    """A model without a head, and one number for each place of its width."""
    return shape.num_weights - (0 if shape.tied else shape.vocab_size * shape.width) + shape.width


def master_bytes(num_trained: int, plan: TrainerPlan) -> int:
    """4·T / n with DeepSpeed, which updates a flat copy of its part; elsewhere the weights are what is updated."""
    return share(4 * num_trained, plan.num_devices) if plan.division.startswith("zero") else 0


def gradient_bytes(shape: ModelShape, num_trained: int, plan: TrainerPlan) -> int:
    """4·T; with FSDP, unless they are summed once an update, and from ZeRO 2 on 4·T / n, with ZeRO 2 and of a matrix
    across the border all of it."""
    if plan.division not in ("fsdp", "zero2", "zero3") or plan.sums_once:
        return 4 * num_trained
    border = 4 * max(shape.vocab_size * shape.width, shape.largest_matrix) if plan.division == "zero2" else 0
    return min(share(4 * num_trained, plan.num_shards) + border, 4 * num_trained)


def moment_bytes(num_trained: int, plan: TrainerPlan) -> int:
    """8·T / n; 4·T / n as bfloat16, 2.01·T / n as 8 bits; none on the device where they are the host's."""
    if plan.offloads_moments:
        return 0
    return share(int(MOMENT_BYTES[plan.moments] * num_trained), plan.num_shards)


def reference_bytes(shape: ModelShape, plan: TrainerPlan) -> int:
    """As the weights; nothing with an adapter, whose base it is."""
    return weight_bytes(shape.num_weights, plan) if plan.has_reference and not plan.lora_rank else 0


def bucket_bytes(shape: ModelShape, plan: TrainerPlan) -> int:
    """4·min(T, 500 million), of each model that is trained."""
    models = [trained_weights(shape, plan), *([critic_weights(shape)] if plan.has_critic else [])]
    return sum(4 * min(num_trained, BUCKET_NUMEL) for num_trained in models)


# A pass ----------------------------------------------------------------------------------------------------------


def row_bytes(shape: ModelShape, plan: TrainerPlan) -> int:
    """(12 + …)·D a token: what comes out 4, normalised 4, scaled 4, and rounded c where products are not float32; its
    gradient is the last layer's."""
    return (12 + (0 if plan.products == "float32" else plan.product_bytes)) * shape.width


def logits_bytes(shape: ModelShape, plan: TrainerPlan) -> int:
    """V × tokens of a chunk × (12 + c): log-probs as they are made 8, and those of the chunk before with their gradient
    4 + c."""
    return min(plan.tokens, plan.chunk_tokens) * shape.vocab_size * (12 + plan.product_bytes)


def kept_logits_bytes(shape: ModelShape, plan: TrainerPlan) -> int:
    """V × tokens of a chunk × (4 + c): log-probs, and their gradient as products take it."""
    return min(plan.tokens, plan.chunk_tokens) * shape.vocab_size * (4 + plan.product_bytes)


SUM_BYTES: Final = 5 * 2**22
"""Products of 2^22 elements of 4 bytes each, and the numbers of rows (engine/weights/sums.py)."""


def published_bytes(shape: ModelShape, plan: TrainerPlan) -> int:
    """Of one matrix at a time what a device writes of it, in the dtype of the rollouts; an adapter goes as it is."""
    if plan.lora_rank or shape.stored_bytes == 4:
        return 0
    largest = max(shape.vocab_size * shape.width, shape.largest_matrix)
    return share(shape.stored_bytes * largest, plan.num_devices)


def _term(what: str, num_bytes: int, how: str = "") -> Term:
    return Term(what=what, num_bytes=num_bytes, how=how)
