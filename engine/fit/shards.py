"""A model that a replica's devices hold together: which numbers of them may, and what one of them has.

    heads      each device as many; of keys and values too, or where there are fewer, several devices have the same
    MLP        each device a part of its width; of a mixture, of every expert's
    tables     each device a part of the words, of which there are as many as a multiple of 64

Invariants:
- what vLLM would not start with is refused before, with every number that it would;
- what is not divided (norms, a router, tables of positions, the stream from layer to layer) each device has whole.
"""

from dataclasses import replace
from typing import Final

from engine.fit.shape import ModelShape

MOST_DEVICES: Final = 64
# vLLM fills up a table of words to so many rows, and then divides it.
WORDS_TOGETHER: Final = 64

FIELD: Final = "resources.devices_per_replica"


def why_not_shardable(shape: ModelShape, num_devices: int) -> str | None:
    """The rule that it breaks, with what is accepted. None: it may be."""
    rule = _broken(shape, num_devices)
    if rule is None:
        return None
    accepted = [str(number) for number in range(1, MOST_DEVICES + 1) if _broken(shape, number) is None]
    return f"{FIELD} must {rule}; got {num_devices}, accepted: {', '.join(accepted)}"


def _broken(shape: ModelShape, num_devices: int) -> str | None:
    words = _words(shape)
    rules = (
        (shape.num_heads % num_devices == 0, f"divide the model's {shape.num_heads} heads"),
        (
            shape.can_deal_heads(num_devices),
            f"divide the model's {shape.num_kv_heads} key/value heads, or be a multiple of them",
        ),
        (
            not shape.num_dense or shape.mlp_width % num_devices == 0,
            f"divide the width of the model's MLP, {shape.mlp_width:,}",
        ),
        (
            not shape.num_mixtures or shape.expert_width % num_devices == 0,
            f"divide the width of the model's experts, {shape.expert_width:,}",
        ),
        (
            not shape.num_mixtures or num_devices <= shape.num_experts,
            f"not exceed the model's {shape.num_experts} experts",
        ),
        (words % num_devices == 0, f"divide {words:,}, the model's words filled up to a multiple of {WORDS_TOGETHER}"),
    )
    return next((rule for is_kept, rule in rules if not is_kept), None)


def shard_of(shape: ModelShape, num_devices: int) -> ModelShape:
    """What one of so many devices has of it."""
    if num_devices == 1:
        return shape
    return replace(
        shape,
        vocab_size=-(-_words(shape) // num_devices),
        num_heads=max(1, shape.num_heads // num_devices),
        num_kv_heads=max(1, shape.num_kv_heads // num_devices),
        mlp_width=-(-shape.mlp_width // num_devices),
        expert_width=-(-shape.expert_width // num_devices),
    )


def _words(shape: ModelShape) -> int:
    return -(-shape.vocab_size // WORDS_TOGETHER) * WORDS_TOGETHER
