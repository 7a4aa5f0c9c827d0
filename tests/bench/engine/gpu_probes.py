"""The probes of `bench gpu`: each is some work of a trainer's, its flop or bytes, and its bound.

    products, memory, link   the device's maximum: the bounds of all others, measured in the same run
    pass                     forward, loss, backward at true widths: of a large model with few layers, a small one whole
    attention, head          the two parts of it that are not plain products
    optimizer                AdamW in float32, which only moves memory
    hand-over                float32 weights into the shared memory that relays read, as rollouts want them

Only necessary work is counted, so a recomputed layer counts once: the share of the bound is the model-flops
utilisation. Every probe also runs on a CPU, at any scale, for tests.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn

from engine.fit.known_models import known_shape
from engine.fit.plan import CHUNK_TOKENS, TrainerPlan
from engine.fit.shape import ModelShape
from engine.fit.trainer import HANDED_OVER, trainer_need
from engine.models.attention import PackedAttention
from engine.models.decoder import Activations, Decoder, DecoderConfig
from engine.policy.lineage import WeightsId
from engine.spec.optimizer import OptimizerSpec
from engine.training.optimizer.fused_adamw import FusedAdamW
from engine.training.parts.published import Published
from engine.training.parts.trained import TrainedPart
from engine.training.port import TrainingTrajectory
from engine.training.step.head import head_scores, rows_of_a_chunk
from engine.training.step.micro_batch import MicroBatch, batch_step
from engine.training.step.scoring import ComputeDtype, score_tokens

Bound = Literal["products", "memory", "link", "data sheet", ""]
ADAMW_BYTES: Final = 28
"""A parameter: weight, gradient and two moments are read, all but the gradient written, each 4 bytes."""
BF16: Final = torch.bfloat16


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The size of the work: large enough to fill a device, and small enough for one of 40 GB."""

    square: int
    copied_bytes: int
    shape: ModelShape
    small_shape: ModelShape
    num_sequences: int
    length: int
    num_parameters: int
    """Of the optimizer's and the hand-over's."""


OF_A_GPU: Final = Scale(
    square=8_192,
    copied_bytes=4 * 2**30,
    shape=replace(known_shape("Qwen3-8B"), num_layers=4),
    small_shape=known_shape("Qwen3-0.6B"),
    num_sequences=2,
    length=4_096,
    num_parameters=500_000_000,
)
_TINY: Final = replace(
    known_shape("Qwen3-0.6B"),
    width=128,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    mlp_width=256,
    vocab_size=512,
)
OF_A_CPU: Final = Scale(
    square=256,
    copied_bytes=2**24,
    shape=_TINY,
    small_shape=replace(_TINY, num_layers=1),
    num_sequences=2,
    length=64,
    num_parameters=2_000_000,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    run: Callable[[], object]
    amount: float
    unit: Literal["flop", "byte"]
    bound: Bound
    counted_bytes: int = 0
    """The memory that it needs by the arithmetic of engine/fit; 0: not counted there."""


Probe = Callable[[Scale, torch.device], Work]


def products(scale: Scale, device: torch.device) -> Work:
    n = scale.square
    left_NN, right_NN = (torch.randn(n, n, device=device, dtype=BF16) for _ in range(2))
    return Work(run=lambda: left_NN @ right_NN, amount=2.0 * n**3, unit="flop", bound="data sheet")


def memory(scale: Scale, device: torch.device) -> Work:
    source, target = (torch.zeros(scale.copied_bytes, dtype=torch.uint8, device=device) for _ in range(2))
    return Work(run=lambda: target.copy_(source), amount=2.0 * scale.copied_bytes, unit="byte", bound="data sheet")


def link(scale: Scale, device: torch.device) -> Work:
    """To the host's pinned memory; on a CPU, to its memory."""
    source = torch.zeros(scale.copied_bytes, dtype=torch.uint8, device=device)
    target = torch.zeros(scale.copied_bytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
    return Work(run=lambda: target.copy_(source), amount=float(scale.copied_bytes), unit="byte", bound="")


def pass_with(activations: Activations, *, is_small: bool = False) -> Probe:
    def probe(scale: Scale, device: torch.device) -> Work:
        scale = replace(scale, shape=scale.small_shape) if is_small else scale
        model = decoder_of(scale.shape, device, max_positions=scale.length)
        model.hold_activations(activations)
        batch = _batch(scale, device)

        def run() -> None:
            model.zero_grad(set_to_none=True)
            scores = score_tokens(model, batch, temperature=1.0, compute_dtype="bfloat16", train_entropy=False)
            (-scores.logprobs_N.mean()).backward()  # type: ignore[no-untyped-call]

        num_tokens = scale.num_sequences * scale.length
        flops = 6.0 * products_of(scale.shape) * num_tokens + scale.shape.num_layers * 3 * _attention_flops(scale)
        return Work(run=run, amount=flops, unit="flop", bound="products", counted_bytes=_counted(scale, activations))

    return probe


def _counted(scale: Scale, activations: Activations) -> int:
    """Weights, gradients and the fullest phase of a pass; there are no moments."""
    plan = TrainerPlan(
        pass_tokens=scale.num_sequences * scale.length,
        chunk_tokens=CHUNK_TOKENS,
        products="bfloat16",
        activations=activations,
    )
    phases = [phase.num_bytes for phase in trainer_need(scale.shape, plan).phases if phase.what != HANDED_OVER]
    return 8 * scale.shape.num_weights + max(phases)


def attention(scale: Scale, device: torch.device) -> Work:
    """Forward and backward of one layer's, sequences side by side; the backward pass needs two and a half as many
    products as the forward one."""
    shape, num_tokens = scale.shape, scale.num_sequences * scale.length
    batch = _batch(scale, device)
    attend = PackedAttention(batch.tokens)
    heads = (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads)
    parts = [
        torch.randn(num_tokens, number, shape.head_dim, device=device, dtype=BF16, requires_grad=True)
        for number in heads
    ]
    return Work(
        run=lambda: torch.autograd.grad(attend(0, *parts).sum(), parts),
        amount=3.5 * _attention_flops(scale),
        unit="flop",
        bound="products",
    )


def head(scale: Scale, device: torch.device) -> Work:
    """Forward and backward: three products."""
    shape, num_tokens = scale.shape, scale.num_sequences * scale.length
    hidden_ND = torch.randn(num_tokens, shape.width, device=device, requires_grad=True)
    weight_VD = torch.randn(shape.vocab_size, shape.width, device=device, requires_grad=True)
    targets_N = torch.randint(0, shape.vocab_size, (num_tokens,), device=device)

    def run() -> tuple[Tensor, ...]:
        logprobs_N, *_ = head_scores(
            hidden_ND,
            weight_VD,
            targets_N,
            temperature=1.0,
            dtype=BF16,
            train_entropy=False,
            chunk=rows_of_a_chunk(shape.vocab_size, device),
        )
        return torch.autograd.grad(logprobs_N.sum(), (hidden_ND, weight_VD))

    amount = 6.0 * num_tokens * shape.vocab_size * shape.width
    return Work(run=run, amount=amount, unit="flop", bound="products")


def optimizer(scale: Scale, device: torch.device) -> Work:
    weight = nn.Parameter(torch.zeros(scale.num_parameters // 1_000, 1_000, device=device))
    weight.grad = torch.ones_like(weight)
    part = TrainedPart(prefix="", parameters={"weight": weight}, views=dict, stored_exactly=True, learning_rate=1e-6)
    adamw = FusedAdamW.of(part, OptimizerSpec())
    return Work(run=adamw.step, amount=float(ADAMW_BYTES * weight.numel()), unit="byte", bound="memory")


def hand_over(scale: Scale, device: torch.device) -> Work:
    rows = scale.num_parameters // 10_000
    weights = {f"layer.{number}": nn.Parameter(torch.zeros(rows, 1_000, device=device)) for number in range(10)}
    version = Published(weights, dict, BF16, values_of=lambda name: weights[name].detach().reshape(-1))
    room = memoryview(bytearray(2 * sum(each.numel() for each in weights.values())))
    return Work(
        run=lambda: version.pack(WeightsId(0, 0), lambda num_bytes: room[:num_bytes]),
        amount=float(len(room)),
        unit="byte",
        bound="link",
    )


PROBES: Final[dict[str, Probe]] = {
    "products in bfloat16": products,
    "memory, copied": memory,
    "link to the host": link,
    "pass, activations kept": pass_with("kept"),
    "pass, layers recomputed": pass_with("recomputed"),
    "pass of the small model, activations kept": pass_with("kept", is_small=True),
    "attention of a layer": attention,
    "head over the vocabulary": head,
    "optimizer, AdamW in float32": optimizer,
    "hand-over, float32 to bfloat16": hand_over,
}
CEILINGS: Final[dict[str, Bound]] = {
    "products in bfloat16": "products", "memory, copied": "memory", "link to the host": "link",
}  # fmt: skip


def decoder_of(shape: ModelShape, device: torch.device, *, max_positions: int) -> Decoder:
    """Of random weights in float32, as a trainer holds them."""
    config = DecoderConfig(
        vocab_size=shape.vocab_size,
        width=shape.width,
        num_layers=shape.num_layers,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        mlp_width=shape.mlp_width,
        max_positions=max_positions,
        rope_theta=1e6,
        norm_eps=1e-6,
        tied=shape.tied,
        dtype=torch.float32,
        qk_norm=shape.qk_norm,
    )
    with device:
        model = Decoder(config, torch.float32)
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.02)
    return model


def products_of(shape: ModelShape) -> int:
    """The weights that a token is multiplied by, without the embedding, which is an index."""
    return shape.num_weights - (0 if shape.tied else shape.vocab_size * shape.width)


def _attention_flops(scale: Scale) -> float:
    """Of a layer's forward pass: a token sees half of its sequence."""
    return scale.num_sequences * 2.0 * scale.shape.num_heads * scale.shape.head_dim * scale.length**2


def _batch(scale: Scale, device: torch.device) -> MicroBatch:
    answers = [
        TrainingTrajectory(
            group=number,
            prompt_ids=(1,),
            response_ids=(*(2 + at % 100 for at in range(scale.length - 1)),),
            behaviour_logprobs=(0.0,) * (scale.length - 1),
            reward=1.0,
        )
        for number in range(scale.num_sequences)
    ]
    [batch] = batch_step(answers, max_tokens=scale.num_sequences * scale.length, device=str(device)).micro_batches
    return batch


def agreement(device: torch.device) -> Iterator[dict[str, Any]]:
    """Of the device's log-probs with a CPU's in float32: of the built-in model, several lengths in one micro-batch."""
    from engine.models.loading import DEMO_FOLDER, load_decoder

    answers = [
        TrainingTrajectory(
            group=length, prompt_ids=(5, 6), response_ids=tuple(7 + at % 9 for at in range(length)),
            behaviour_logprobs=(0.0,) * length, reward=1.0,
        )
        for length in (3, 17, 40)
    ]  # fmt: skip
    logprobs: dict[str, Tensor] = {}
    ways: list[tuple[str, ComputeDtype]] = [("cpu", "float32"), (str(device), "float32"), (str(device), "bfloat16")]
    for where, dtype in dict.fromkeys(ways):
        model = load_decoder(DEMO_FOLDER, device=where, dtype=torch.float32)
        [batch] = batch_step(answers, max_tokens=1_000, device=where).micro_batches
        with torch.no_grad():
            scores = score_tokens(model, batch, temperature=1.0, compute_dtype=dtype, train_entropy=False)
        gap = 0.0 if not logprobs else (scores.logprobs_N.cpu() - logprobs["cpu float32"]).abs().max().item()
        logprobs[f"{where} {dtype}"] = scores.logprobs_N.cpu()
        yield {"figure": f"log-probs in {dtype} on {where}", "unit": "nats off a CPU's float32", "median": gap}
