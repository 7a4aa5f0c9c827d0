"""Weight versions that a replica holds at once: how many, and what each costs.

    torch          an engine per version: its weights, its share of the KV cache
    vllm           one version
    vllm and LoRA  one engine with the base model, one batch and one KV cache; a version is an adapter

Invariant: the spec alone decides whether versions share an engine, so that the memory estimate, the start of a replica
and the validation of a spec agree.
"""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from engine.spec.job import JobSpec

# The maximum ranks that vLLM supports (a test compares). An adapter takes the space of the next larger one.
VLLM_RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)


def room_of_rank(rank: int) -> int:
    return next(room for room in VLLM_RANKS if room >= rank)


def share_an_engine(spec: "JobSpec") -> bool:
    """Whether versions share an engine. A job that only evaluates holds merged weights, even after LoRA training."""
    is_adapter = 0 < spec.trainer.lora_rank <= VLLM_RANKS[-1] and not spec.only_evaluates
    return spec.rollout.engine == "vllm" and is_adapter


def num_weight_slots(spec: "JobSpec") -> int:
    return spec.rollout.weight_slots or (2 if spec.rollout.engine == "torch" or share_an_engine(spec) else 1)


def kv_tokens_of_a_slot(spec: "JobSpec") -> int:
    """The KV tokens available to one version's sequences; 0: not set."""
    is_divided = spec.schedule.name == "laminar" and not share_an_engine(spec)
    return spec.rollout.kv_tokens // (num_weight_slots(spec) if is_divided else 1)
