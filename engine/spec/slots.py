"""Versions side by side in a replica: how many there are, and what each of them costs.

    torch             an engine for each version: its weights, its share of the KV cache
    vllm              one version
    vllm, an adapter  one engine with the base, one batch and one KV cache; a version is an adapter beside it

Invariant: whether versions share an engine follows from the spec alone, so that who counts memory, who starts a replica
and who refuses a spec agree.
"""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from engine.spec.job import JobSpec

# The ranks that vLLM has room for (a test compares). An adapter takes the room of the next of them.
VLLM_RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)


def room_of_rank(rank: int) -> int:
    return next(room for room in VLLM_RANKS if room >= rank)


def share_an_engine(spec: "JobSpec") -> bool:
    """A job that only evaluates has whole weights, whatever it was trained by."""
    is_adapter = 0 < spec.trainer.lora_rank <= VLLM_RANKS[-1] and not spec.only_evaluates
    return spec.rollout.engine == "vllm" and is_adapter


def num_weight_slots(spec: "JobSpec") -> int:
    return spec.rollout.weight_slots or (2 if spec.rollout.engine == "torch" or share_an_engine(spec) else 1)


def kv_tokens_of_a_slot(spec: "JobSpec") -> int:
    """That a sequence may have for itself. 0: nobody said."""
    is_divided = spec.schedule.name == "laminar" and not share_an_engine(spec)
    return spec.rollout.kv_tokens // (num_weight_slots(spec) if is_divided else 1)
