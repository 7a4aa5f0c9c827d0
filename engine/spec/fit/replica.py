"""What the device of a replica needs: weights for each version that it holds, keys and values, and a step's work."""

from dataclasses import dataclass
from typing import Final, Self

from engine.spec.fit.margins import device_margins
from engine.spec.fit.need import Need, Phase, Term, in_words
from engine.spec.fit.plan import PROMPT_TOKENS, longest_tokens
from engine.spec.fit.shape import ModelShape
from engine.spec.job import JobSpec

# Tokens of prompts that a step reads in, as the engines bound them (a test compares).
READ_IN_TOKENS: Final = {"torch": 1_024, "vllm": 16_384}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPlan:
    weight_slots: int
    max_batch: int
    kv_tokens: int
    """In all slots together."""
    takes_kv_at_once: bool
    """Else as sequences grow."""
    read_in_tokens: int
    gathers_kv: bool
    """A layer's keys and values are brought together before they are attended to."""

    @classmethod
    def of_spec(cls, spec: JobSpec, shape: ModelShape, *, prompt_tokens: int = PROMPT_TOKENS) -> Self:
        rollout = spec.rollout
        longest = longest_tokens(spec, shape, prompt_tokens=prompt_tokens)
        beside, is_vllm = spec.schedule.name == "laminar", rollout.engine == "vllm"
        # vLLM takes what is free, and has to have one sequence's.
        unsaid = longest if is_vllm else rollout.max_batch * longest
        return cls(
            weight_slots=rollout.num_weight_slots if beside else 1,
            max_batch=rollout.max_batch,
            kv_tokens=rollout.kv_tokens or unsaid,
            takes_kv_at_once=rollout.kv_tokens > 0 or is_vllm,
            read_in_tokens=READ_IN_TOKENS[rollout.engine],
            gathers_kv=rollout.engine == "torch",
        )


def replica_need(shape: ModelShape, plan: ReplicaPlan) -> Need:
    versions = f"{plan.weight_slots} versions of " if plan.weight_slots > 1 else ""
    weights = Term(
        what="weights",
        num_bytes=held_bytes(shape, plan),
        how=f"{versions}{in_words(shape.num_weights)} × {shape.stored_bytes} B",
    )
    cache = Term(
        what="KV cache",
        num_bytes=kv_bytes(shape, plan),
        how=f"{plan.kv_tokens:,} tokens × {kv_bytes_of_token(shape):,} B",
    )
    grown = (
        Term(what="keys and values of a layer, gathered", num_bytes=gathered_kv_bytes(shape, plan)),
        Term(what="reading prompts in", num_bytes=read_in_bytes(shape, plan), how=f"{plan.read_in_tokens:,} tokens"),
        Term(
            what="logits of a step",
            num_bytes=sampled_bytes(shape, plan),
            how=f"{plan.max_batch:,} rows × {shape.vocab_size:,}",
        ),
    )
    return Need(
        of="Each replica's device",
        always=(weights, cache) if plan.takes_kv_at_once else (weights,),
        phases=(
            Phase(
                what="with every place taken by the longest answer",
                terms=grown if plan.takes_kv_at_once else (cache, *grown),
            ),
        ),
        margins=device_margins(num_devices=1),
    )


def held_bytes(shape: ModelShape, plan: ReplicaPlan) -> int:
    """slots · P · bytes as stored."""
    return plan.weight_slots * shape.num_weights * shape.stored_bytes


def kv_bytes_of_token(shape: ModelShape) -> int:
    """N · 2·K·E · bytes as stored."""
    return shape.num_layers * 2 * shape.key_width * shape.stored_bytes


def kv_bytes(shape: ModelShape, plan: ReplicaPlan) -> int:
    return plan.kv_tokens * kv_bytes_of_token(shape)


def gathered_kv_bytes(shape: ModelShape, plan: ReplicaPlan) -> int:
    """One layer's share of the cache, if pages are gathered."""
    return kv_bytes(shape, plan) // shape.num_layers if plan.gathers_kv else 0


def read_in_bytes(shape: ModelShape, plan: ReplicaPlan) -> int:
    """tokens · (3·D + 2·Q + 3·F): a layer without gradients, its MLP beside what comes in; of a mixture k·(D + 3·M)."""
    dense = 3 * shape.mlp_width if shape.num_dense else 0
    mixed = shape.experts_per_token * (shape.width + 3 * shape.expert_width)
    return plan.read_in_tokens * shape.stored_bytes * (3 * shape.width + 2 * shape.projected_width + max(dense, mixed))


def sampled_bytes(shape: ModelShape, plan: ReplicaPlan) -> int:
    """rows · V · (as computed, and four of float32: scaled, log-probs, probabilities, their sums)."""
    return plan.max_batch * shape.vocab_size * (shape.stored_bytes + 16)
