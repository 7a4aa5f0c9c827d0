"""A device's results against the CPU's: each gap with its bound, most important first; a minute on a GPU.

    trainer    one step of the built-in model: log-probs, loss, gradient and weights, in float32 and bfloat16
    attention  packed sequences against each sequence alone in float32, forwards and backwards
    rollouts   log-probs of sampled tokens against the CPU's for the same tokens; on a GPU most steps are graphs
    replay     the same step trained twice with deterministic kernels: the same bits

Bounds follow from the rounding of float32 and bfloat16, not from measurements. With `--device cpu` the CPU is compared
with itself, which exercises the code and shows that bfloat16's rounding stays within the bounds.
"""

import argparse
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from engine.inference.port import SamplingParams, SequenceOutput, SequenceRequest
from engine.inference.probing import row_logprobs
from engine.inference.torch_engine import TorchRolloutEngine
from engine.models.attention import PackedAttention
from engine.models.loading import DEMO_FOLDER, load_decoder
from engine.policy.lineage import WeightsId
from engine.scorecard.tables import Row, rounded
from engine.spec.job import AlgorithmSpec, OptimizerSpec, TrainerSpec
from engine.training.factory import build_trainer
from engine.training.port import StepResult, TrainingTrajectory
from engine.training.replay.deterministic import deterministic_kernels, fix_workspace
from engine.training.settings import TrainerSettings
from engine.training.step.micro_batch import batch_step
from engine.training.step.scoring import ComputeDtype
from engine.training.trainer import Trainer
from engine.weights.snapshot import map_weights
from tests.bench.engine.report import Report

VOCABULARY: Final = range(4, 130)
MAX_NEW_TOKENS: Final = 30
LEARNING_RATE, EPSILON = 1e-2, 1e-3
OF_SUMS: Final = 3 * 16 * math.sqrt(1_000) * 2.0**-24
"""Float32: log-probs of up to 16, each a sum of about 1,000 products in another order, through three passes."""
OF_PRODUCTS: Final = math.sqrt(2 * 3 * 7) * 2.0**-8
"""Bfloat16: a gradient is behind seven products of three layers, forwards and backwards, each rounded on its own."""
OF_A_STEP: Final = 0.01
"""Of the learning rate. Adam divides a gradient by its own size or `EPSILON`, so a millionth becomes a thousandth."""
FORWARDS, BACKWARDS = 4 * 2.0**-9, 8 * 2.0**-9
"""Attention in bfloat16: of inputs, probabilities, their sum and the result; backwards twice as many."""
HEADS, KV_HEADS, HEAD_DIM = 8, 2, 128
LENGTHS: Final = (3, 17, 64, 200, 513)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS), help="default: all")


def measure(arguments: argparse.Namespace) -> Report:
    if arguments.device == "cuda" and not torch.cuda.is_available():
        return Report(bench="agreement", rows=[], remarks=["No GPU here: nothing was tried."])
    fix_workspace()
    rows: list[Row] = []
    remarks: list[str] = []
    for part in arguments.parts:
        try:
            rows += PARTS[part](arguments.device, remarks.append)
        except (RuntimeError, ValueError, ImportError, NotImplementedError) as error:
            remarks.append(f"could not be tried: {part}: {type(error).__name__}: {str(error).splitlines()[0]}")
            rows.append({"figure": part, "gap": None, "bound": None, "ok": 0})
    return Report(bench="agreement", rows=rows, remarks=remarks)


Remark = Callable[[str], None]


def row(figure: str, gap: float, bound: float) -> Row:
    """A gap that is not a number exceeds every bound."""
    return {"figure": figure, "gap": rounded(gap), "bound": rounded(bound), "ok": int(gap <= bound)}


# Trainer ------------------------------------------------------------------------------------------------------------


def trainer_rows(device: str, _: Remark) -> Iterator[Row]:
    """Uses the CPU's log-probs as a rollout's: the step then measures its gap and its bound as every job does."""
    answers = _answers()
    begun = _stepped("cpu", "float32", answers)[0].begun_logprobs
    by_cpu = [
        replace(answer, behaviour_logprobs=tuple(map(float, logprobs)))
        for answer, logprobs in zip(answers, begun, strict=True)
    ]
    reference, weights = _stepped("cpu", "float32", by_cpu)
    dtypes: tuple[ComputeDtype, ...] = ("float32", "bfloat16")
    for dtype in dtypes:
        result, stepped = _stepped(device, dtype, by_cpu)
        metrics = result.metrics
        named = f"step in {dtype}"
        gap, bound = metrics["train/logprob_gap_p90"], metrics["train/logprob_gap_bound"]
        yield row(f"{named}, log-probs (nats, 90th percentile)", gap, bound)
        norm, expected = metrics["train/grad_norm"], reference.metrics["train/grad_norm"]
        relative = OF_SUMS if dtype == "float32" else OF_PRODUCTS
        yield row(f"{named}, length of the gradient (relative)", abs(norm - expected) / expected, relative)
        if dtype == "float32":
            moved = max((stepped[name] - weights[name]).abs().max().item() for name in weights)
            yield row(f"{named}, weights after it (of the learning rate)", moved / LEARNING_RATE, OF_A_STEP)


def _stepped(
    device: str, dtype: ComputeDtype, answers: Sequence[TrainingTrajectory]
) -> tuple[StepResult, dict[str, Tensor]]:
    trainer = _trainer(device, dtype)
    result = trainer.train_step(list(answers))
    return result, map_weights(trainer.snapshot(WeightsId(0, 1)))


def _trainer(device: str, dtype: ComputeDtype) -> Trainer:
    settings = TrainerSettings(
        algorithm=AlgorithmSpec(),
        optimizer=OptimizerSpec(learning_rate=LEARNING_RATE, warmup_steps=0, eps=EPSILON),
        trainer=TrainerSpec(compute_dtype=dtype),
        num_steps=100,
        temperature=1.0,
        max_new_tokens=MAX_NEW_TOKENS,
        seed=0,
    )
    return build_trainer(DEMO_FOLDER, settings, device=device)


def _answers() -> list[TrainingTrajectory]:
    """Three groups of four, of many lengths."""
    drawn = random.Random(0)
    answers = []
    for number in range(12):
        response = tuple(drawn.choices(VOCABULARY, k=drawn.randint(2, MAX_NEW_TOKENS)))
        answers.append(
            TrainingTrajectory(
                group=number // 4,
                prompt_ids=tuple(drawn.choices(VOCABULARY, k=drawn.randint(1, 9))),
                response_ids=response,
                behaviour_logprobs=(-4.0,) * len(response),
                reward=float(number % 2),
            )
        )
    return answers


# Attention ----------------------------------------------------------------------------------------------------------


def attention_rows(device: str, _: Remark) -> Iterator[Row]:
    chance = torch.Generator().manual_seed(0)
    answers = [
        TrainingTrajectory(
            group=length,
            prompt_ids=(length,),
            response_ids=tuple(2 + at % 100 for at in range(length)),
            behaviour_logprobs=(0.0,) * length,
            reward=0.0,
        )
        for length in LENGTHS
    ]
    [batch] = batch_step(answers, max_tokens=2 * sum(LENGTHS), device=device).micro_batches
    num_tokens = len(batch.ids)
    parts = [
        torch.randn(num_tokens, heads, HEAD_DIM, generator=chance).to(torch.bfloat16)
        for heads in (HEADS, KV_HEADS, KV_HEADS)
    ]
    pull = torch.randn(num_tokens, HEADS * HEAD_DIM, generator=chance).to(torch.bfloat16)
    packed = [part.to(device).requires_grad_() for part in parts]
    mixed = PackedAttention(batch.tokens)(0, *packed)
    gradients = torch.autograd.grad(mixed, packed, pull.to(device))
    alone = [part.float().requires_grad_() for part in parts]
    expected = torch.zeros(num_tokens, HEADS * HEAD_DIM)
    for places in batch.tokens.places.values():
        expected = expected.index_copy(0, torch.from_numpy(places), _alone([part[places] for part in alone]))
    expected_gradients = torch.autograd.grad(expected, alone, pull.float())
    yield row("attention in bfloat16 (relative)", _apart(mixed, expected), FORWARDS)
    for name, found, due in zip("qkv", gradients, expected_gradients, strict=True):
        yield row(f"attention in bfloat16, gradient of {name} (relative)", _apart(found, due), BACKWARDS)


def _alone(parts: Sequence[Tensor]) -> Tensor:
    q_HTE, k_KTE, v_KTE = (part.transpose(0, 1) for part in parts)
    mixed_HTE = functional.scaled_dot_product_attention(
        q_HTE[None], k_KTE[None], v_KTE[None], is_causal=True, enable_gqa=True
    )[0]
    return mixed_HTE.transpose(0, 1).flatten(1)


def _apart(found: Tensor, expected: Tensor) -> float:
    difference = found.detach().float().cpu() - expected.detach()
    return float(difference.norm() / expected.detach().norm())


# Rollouts -----------------------------------------------------------------------------------------------------------


def rollout_rows(device: str, remark: Remark) -> Iterator[Row]:
    prompts = [tuple(random.Random(number).choices(VOCABULARY, k=1 + 3 * number)) for number in range(12)]
    answers = _answered(TorchRolloutEngine(DEMO_FOLDER, max_batch=8, device=device, layout="paged"), prompts)
    by_cpu = _answered(TorchRolloutEngine(DEMO_FOLDER, max_batch=8, device="cpu"), prompts)
    model = load_decoder(DEMO_FOLDER, device="cpu", dtype=torch.float32)
    gap = 0.0
    for number, prompt in enumerate(prompts):
        answer = answers[number]
        due = row_logprobs(model, (*prompt, *answer.token_ids), device="cpu")[len(prompt) - 1 :]
        gap = max(gap, float(np.abs(np.subtract(due, answer.logprobs)).max()))
    yield row("rollouts in float32, log-probs (nats, largest)", gap, OF_SUMS)
    same = sum(answers[number].token_ids == by_cpu[number].token_ids for number in range(len(prompts)))
    remark(f"{same} of {len(prompts)} answers are the CPU's token by token; rounding may decide a draw")


def _answered(engine: TorchRolloutEngine, prompts: Sequence[tuple[int, ...]]) -> dict[int, SequenceOutput]:
    """Answers more prompts than there are rows, so that rows are freed and reused between steps."""
    for number, prompt in enumerate(prompts):
        sampling = SamplingParams(max_new_tokens=MAX_NEW_TOKENS, temperature=1.0, seed=number)
        engine.submit([SequenceRequest(sequence_id=str(number), prompt_ids=prompt, sampling=sampling)])
    ended: dict[int, SequenceOutput] = {}
    while len(ended) < len(prompts):
        ended |= {int(output.sequence_id): output for output in engine.step()}
    return ended


# Replay -------------------------------------------------------------------------------------------------------------


def replay_rows(device: str, remark: Remark) -> Iterator[Row]:
    dtypes: tuple[ComputeDtype, ...] = ("float32", "bfloat16")
    for dtype in dtypes:
        hashes = []
        for _ in range(2):
            trainer = _trainer(device, dtype)
            with deterministic_kernels(are_wanted=True) as operations:
                for _ in range(3):
                    trainer.train_step(_answers())
            hashes.append(sha256(trainer.snapshot(WeightsId(0, 3)).buffer).digest())
            for operation in operations:
                remark(f"no deterministic kernel in {dtype}: {operation}")
        yield row(f"three steps in {dtype} trained twice, other bits", float(hashes[0] != hashes[1]), 0.0)


PARTS: Final[dict[str, Callable[[str, Remark], Iterator[Row]]]] = {
    "trainer": trainer_rows,
    "attention": attention_rows,
    "rollouts": rollout_rows,
    "replay": replay_rows,
}
