"""What the device of a replica needs: weights for each version that it holds, keys and values, and a step's work. Of
several devices, which hold a model together (dealing.py), each.

A step reads prompts in, then decodes a token of every row; the one's memory is free before the other begins. Letters as
in shape.py; c is the bytes of an element as it is stored.
"""

from dataclasses import dataclass
from typing import Final, Self

from engine.fit.forwards import own_attention_bytes, own_pass_bytes, vllm_pass_bytes
from engine.fit.margins import device_margins
from engine.fit.need import Need, Phase, Term, in_words
from engine.fit.plan import PROMPT_TOKENS, longest_tokens
from engine.fit.shape import ModelShape
from engine.fit.shards import shard_of
from engine.spec.job import JobSpec
from engine.spec.slots import num_weight_slots, room_of_rank, share_an_engine

# Tokens of prompts that a step reads in, as the engines bound them (a test compares).
READ_IN_TOKENS: Final = {"torch": 1_024, "vllm": 2_048}
# vLLM's pages on a GPU; one of them is its own.
VLLM_BLOCK_TOKENS: Final = 16
# Of each row there is room for so many from the start, where the cache's size is not given; then it doubles.
FIRST_TOKENS_OF_A_ROW: Final = 64

# The own engine has keys and values in blocks of so many tokens; on a GPU it reads them where they lie, in stretches.
BLOCK_TOKENS: Final = 16
STRETCH_TOKENS: Final = 512
# It draws from stretches of the vocabulary of so many words.
DRAWN_AT_ONCE: Final = 128

# A score and its softmax in float32, and whether it is of a token that is hidden.
SCORE_BYTES: Final = 9

# Of a weight to which an adapter's is added, as stored, as float32 and as they are added up, and of the one before.
ADDED_BYTES: Final = 20

READ_IN: Final = "during a prefill"
READ_ON: Final = "while a prefill continues"
COMPUTED: Final = "during the forward pass of a decoding step"
DRAWN: Final = "while a decoding step samples"
INSTALLED: Final = "while new weights are installed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPlan:
    weight_slots: int
    max_batch: int
    longest: int
    """Tokens of a sequence."""
    kv_tokens: int
    """In all slots together, that the cache has room for; of one that grows, that the rows hold at their longest."""
    takes_kv_at_once: bool
    """Else it doubles as sequences grow."""
    read_in_tokens: int
    is_vllm: bool = False
    """Else the own engine, which brings a layer's keys and values together where it reads on in a prompt."""
    merges: bool = False
    """Versions are an adapter's, which is added to the base where it is installed."""
    adapter_rank: int = 0
    """Versions are adapters of one base, in room for this rank."""
    cuts: bool = False
    """Unlikely tokens are left out: a vocabulary is sorted."""
    num_devices: int = 1
    """Which hold the model together."""

    @classmethod
    def of_spec(cls, spec: JobSpec, shape: ModelShape, *, prompt_tokens: int = PROMPT_TOKENS) -> Self:
        rollout = spec.rollout
        longest = longest_tokens(spec, shape, prompt_tokens=prompt_tokens)
        is_laminar, is_vllm = spec.schedule.name == "laminar", rollout.engine == "vllm"
        kv_tokens = rollout.kv_tokens or rollout.max_batch * longest
        if is_vllm:  # it takes what is free, and has to have room for one sequence of any length
            kv_tokens = _in_blocks(rollout.kv_tokens or shape.max_positions)
        is_adapter = share_an_engine(spec)
        return cls(
            weight_slots=num_weight_slots(spec) if is_laminar else 1,
            max_batch=rollout.max_batch,
            longest=longest,
            kv_tokens=kv_tokens,
            takes_kv_at_once=rollout.kv_tokens > 0 or is_vllm,
            read_in_tokens=max(READ_IN_TOKENS[rollout.engine], rollout.max_batch if is_vllm else 0),
            is_vllm=is_vllm,
            merges=spec.trainer.lora_rank > 0 and not is_adapter,
            adapter_rank=room_of_rank(spec.trainer.lora_rank) if is_adapter else 0,
            cuts=rollout.sampling.cuts or spec.evaluation_sampling.cuts,
            num_devices=spec.resources.devices_per_replica if is_vllm else 1,
        )


def replica_need(model: ModelShape, plan: ReplicaPlan) -> Need:
    shape = shard_of(model, plan.num_devices)
    weights = Term(what="weights", num_bytes=held_bytes(shape, plan), how=_held_words(shape, plan))
    positions = Term(what="rotary tables", num_bytes=positions_bytes(shape, plan))
    captured = Term(what="workspace of captured steps", num_bytes=captured_bytes(shape, plan))
    experts = Term(what="workspace of vLLM's experts", num_bytes=experts_bytes(model, plan))
    tokens = backed_tokens(shape, plan)
    cache = Term(
        what="KV cache",
        num_bytes=tokens * kv_bytes_of_token(shape),
        how=f"{tokens:,} tokens × {kv_bytes_of_token(shape):,} B",
    )
    at_once = plan.takes_kv_at_once
    return Need(
        of="Each replica's device" if plan.num_devices == 1 else f"Each of a replica's {plan.num_devices} devices",
        always=(weights, positions, experts, captured, *((cache,) if at_once else ())),
        phases=_phases(model, plan, () if at_once else (cache,)),
        margins=device_margins(num_devices=plan.num_devices),
    )


def _phases(model: ModelShape, plan: ReplicaPlan, grown: tuple[Term, ...]) -> tuple[Phase, ...]:
    """`grown`: a cache that grows. Logits are brought together where tokens are drawn."""
    shape = shard_of(model, plan.num_devices)
    of_token = layer_pass_bytes(shape, plan)
    attended = Term(
        what="keys and values of a layer, gathered",
        num_bytes=attended_bytes(shape, plan),
        how="" if plan.is_vllm else f"{attended_tokens(plan):,} tokens",
    )
    read_in = Term(
        what="activations of a layer",
        num_bytes=plan.read_in_tokens * of_token,
        how=f"{plan.read_in_tokens:,} tokens × {of_token:,} B",
    )
    read_on = Term(
        what="attention over earlier tokens", num_bytes=plan.read_in_tokens * attention_pass_bytes(shape, plan)
    )
    rows = Term(what="activations of one token per sequence", num_bytes=plan.max_batch * of_token)
    logits = Term(
        what="logits of a step",
        num_bytes=sampled_bytes(model, plan),
        how=f"{plan.max_batch:,} rows × {model.vocab_size:,}",
    )
    parts = Term(what="partial results of attention", num_bytes=parts_bytes(shape, plan))
    outputs = Term(what="hidden states of the last layer", num_bytes=rows_bytes(shape, plan))
    scores = Term(what="attention scores", num_bytes=scored_bytes(shape, plan))
    installed = Term(what="rebuilt or merged weights", num_bytes=installed_bytes(shape, plan))
    before = tuple(Term(what="the KV cache before it grew", num_bytes=cache.num_bytes // 2) for cache in grown)
    return (
        Phase(what=READ_IN, terms=(*grown, read_in)),
        Phase(what=READ_ON, terms=(*grown, attended, scores, read_on)),
        Phase(what=COMPUTED, terms=(*grown, parts, rows)),
        Phase(what=DRAWN, terms=(*grown, logits, outputs)),
        Phase(what=INSTALLED, terms=(*grown, installed)),
        *(Phase(what="while the KV cache grows", terms=(*grown, each)) for each in before),
    )


def _held_words(shape: ModelShape, plan: ReplicaPlan) -> str:
    of_one, num = f"{in_words(shape.num_weights)} × {shape.stored_bytes} B", plan.weight_slots
    if plan.adapter_rank:
        of_adapter = f"{in_words(shape.adapter_weights(plan.adapter_rank))} × {shape.stored_bytes} B"
        return f"{of_one}, and {num} adapter{'s' * (num > 1)} of {of_adapter}"
    return f"{num} versions of {of_one}" if num > 1 else of_one


def held_bytes(shape: ModelShape, plan: ReplicaPlan) -> int:
    """slots · P · c; of adapters P · c, and those."""
    adapters = plan.weight_slots * shape.adapter_weights(plan.adapter_rank)
    num_weights = shape.num_weights + adapters if plan.adapter_rank else plan.weight_slots * shape.num_weights
    return num_weights * shape.stored_bytes


def positions_bytes(shape: ModelShape, plan: ReplicaPlan) -> int:
    """slots · 8·E of each position that the model has; of vLLM's, c·E."""
    of_position = shape.stored_bytes if plan.is_vllm else plan.weight_slots * 8
    return of_position * shape.head_dim * shape.max_positions


def kv_bytes_of_token(shape: ModelShape) -> int:
    """N · 2·K·E · c."""
    return shape.num_layers * 2 * shape.key_width * shape.stored_bytes


def backed_tokens(shape: ModelShape, plan: ReplicaPlan) -> int:
    """Of a cache that grows: the first doubling that is enough, and never more than the longest of all rows."""
    if plan.takes_kv_at_once:
        return plan.kv_tokens
    tokens = plan.max_batch * FIRST_TOKENS_OF_A_ROW
    while tokens < plan.kv_tokens:
        tokens *= 2
    return min(tokens, plan.max_batch * (shape.max_positions + 16))


def attended_tokens(plan: ReplicaPlan) -> int:
    """Every row is as wide as the longest of them."""
    return plan.max_batch * min(plan.longest, plan.kv_tokens)


def attended_bytes(shape: ModelShape, plan: ReplicaPlan) -> int:
    """Of one layer, where a prompt is read on: 2·K·E · c a token. In float32 it is behind a mask, and query heads that
    share keys have no kernel of their own there: 3·A · 4 for every query head, and a token's scores, 9·H."""
    if plan.is_vllm:
        return 0
    of_token = 2 * shape.key_width * shape.stored_bytes
    if _has_no_kernel(shape, plan):
        of_token += 12 * shape.attention_width + SCORE_BYTES * shape.num_heads
    return attended_tokens(plan) * of_token


def scored_bytes(shape: ModelShape, plan: ReplicaPlan) -> int:
    """9·H of each token that is read in, and each that came before it: the same without a kernel."""
    pairs = plan.read_in_tokens * min(plan.longest, plan.kv_tokens)
    return SCORE_BYTES * shape.num_heads * pairs if _has_no_kernel(shape, plan) else 0


def _has_no_kernel(shape: ModelShape, plan: ReplicaPlan) -> bool:
    return not plan.is_vllm and shape.stored_bytes == 4 and shape.num_heads != shape.num_kv_heads


def parts_bytes(shape: ModelShape, plan: ReplicaPlan) -> int:
    """Of one layer, as its pages are read: 4·(E + 1) of every row, query head and stretch. Tables double."""
    if plan.is_vllm:
        return 0
    num_blocks = 1 << (-(-min(plan.longest, plan.kv_tokens) // BLOCK_TOKENS) - 1).bit_length()
    num_stretches = -(-num_blocks * BLOCK_TOKENS // STRETCH_TOKENS)
    return plan.max_batch * num_stretches * 4 * (shape.attention_width + shape.num_heads)


def captured_bytes(shape: ModelShape, plan: ReplicaPlan) -> int:
    """The memory of steps that are played again is theirs for good: a step's at its fullest."""
    computed = parts_bytes(shape, plan) + plan.max_batch * layer_pass_bytes(shape, plan)
    return 0 if plan.is_vllm else max(computed, sampled_bytes(shape, plan))


def _in_blocks(num_tokens: int) -> int:
    return (1 - -num_tokens // VLLM_BLOCK_TOKENS) * VLLM_BLOCK_TOKENS


def layer_pass_bytes(shape: ModelShape, plan: ReplicaPlan) -> int:
    """Of one token, without gradients. Of adapters 4·rank more for each of the three matrices that are made in one."""
    return vllm_pass_bytes(shape) + 12 * plan.adapter_rank if plan.is_vllm else own_pass_bytes(shape)


def attention_pass_bytes(shape: ModelShape, plan: ReplicaPlan) -> int:
    """Of it, what is there while a layer attends."""
    return vllm_pass_bytes(shape) if plan.is_vllm else own_attention_bytes(shape)


def experts_bytes(shape: ModelShape, plan: ReplicaPlan) -> int:
    """What vLLM keeps for its experts to work in: c·k·(max(M, D) + max(2·M, D)) of each token that is read in; no
    less where several devices have experts each."""
    if not (plan.is_vllm and shape.num_mixtures):
        return 0
    of_expert = max(shape.expert_width, shape.width) + max(2 * shape.expert_width, shape.width)
    return plan.read_in_tokens * shape.stored_bytes * shape.experts_per_token * of_expert


def rows_bytes(shape: ModelShape, plan: ReplicaPlan) -> int:
    """c·D of each token that is read in: vLLM has the last layer's output of all of them still."""
    return plan.read_in_tokens * shape.stored_bytes * shape.width if plan.is_vllm else 0


def sampled_bytes(shape: ModelShape, plan: ReplicaPlan) -> int:
    """rows · V · (4 as float32, 8 log-probs and probabilities, 8 of these as float64), and 24 of every stretch of V,
    its sums. vLLM's: c, 4, 8 and the sums of all of V, 16. Where tokens are left out, 39 instead of these, of both:
    sorted, their order, and sums of those that stay."""
    words, rounded = plan.max_batch * shape.vocab_size, 4 if shape.stored_bytes < 4 else 0
    if plan.is_vllm or plan.cuts:
        return words * (shape.stored_bytes + rounded + 8 + (39 if plan.cuts else 16))
    return words * 20 + 24 * words // DRAWN_AT_ONCE


def installed_bytes(shape: ModelShape, plan: ReplicaPlan) -> int:
    """vLLM rebuilds a module's weights before it copies them into place: c of the largest, V·D, a layer's
    matrix, or all of a mixture's experts, X·3·M·D. An adapter is added to one matrix at a time: as stored, as float32,
    with what is added, and the one before it, 20·F·D; for vLLM also a layer's values, and whole modules once more.
    An adapter that is not merged is copied to its slot.
    """
    if plan.adapter_rank:
        return 0
    module = max(
        shape.vocab_size * shape.width,
        shape.largest_matrix,
        3 * shape.expert_width * shape.num_experts * shape.width,
    )
    made_anew = shape.stored_bytes * module if plan.is_vllm else 0
    if not plan.merges:
        return made_anew
    matrix = max(shape.mlp_width if shape.num_dense else 0, shape.attention_width) * shape.width
    stored = shape.stored_bytes * shape.key_width * shape.width if plan.is_vllm else 0
    return max(ADDED_BYTES * matrix + stored, 2 * made_anew)
