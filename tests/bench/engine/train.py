"""Seconds of a trainer's pass (forward, loss and backward) at true widths, against `transformers` on the same shape.

The same random weights' shape, the same sequences, float32, gradients of every weight; one thread. The loss is the mean
log-prob of the next token: here by chunks of logits, there by `transformers`' own loss. With `recomputed` every layer
is computed a second time for the backward pass, which the other figures do not include.
"""

import argparse
import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch

from engine.models.decoder import Activations, Decoder, DecoderConfig
from engine.scorecard.tables import Row, Spread, rounded
from engine.training.port import TrainingTrajectory
from engine.training.step.micro_batch import MicroBatch, batch_step
from engine.training.step.scoring import score_tokens
from tests.bench.engine.report import Report, in_turns


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    name: str
    width: int
    heads: int
    kv_heads: int
    mlp: int
    layers: int
    vocabulary: int


SHAPES: Final = (
    Shape(name="8B", width=4_096, heads=32, kv_heads=8, mlp=12_288, layers=1, vocabulary=1_024),
    Shape(name="0.6B", width=1_024, heads=16, kv_heads=8, mlp=3_072, layers=2, vocabulary=151_936),
)
HEAD_DIM: Final = 128


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--shapes", nargs="+", default=["8B", "0.6B"], choices=[shape.name for shape in SHAPES])


def measure(arguments: argparse.Namespace) -> Report:
    torch.set_num_threads(1)
    rows = [row for shape in SHAPES if shape.name in arguments.shapes for row in _rows(shape, arguments)]
    remarks = [
        f"{arguments.sequences} sequences of {arguments.length} tokens, float32, one thread",
        *(f"{each.name}: its width, {each.layers} layers, vocabulary {each.vocabulary:,}" for each in SHAPES),
    ]
    return Report(bench="train", rows=rows, remarks=remarks)


def _rows(shape: Shape, arguments: argparse.Namespace) -> Iterator[Row]:
    num_tokens = arguments.sequences * arguments.length
    model, batch = _decoder(shape, arguments.length), _batch(shape, arguments)
    theirs = _transformers(shape, arguments)
    contestants: dict[str, Callable[[], float]] = {
        "kept": partial(_pass, model, batch, "kept"),
        "recomputed": partial(_pass, model, batch, "recomputed"),
        "transformers": theirs,
    }
    for run in contestants.values():
        run()
    samples = in_turns(contestants, repeats=arguments.repeats)
    baseline = Spread.of(samples["transformers"]).median
    weights_of_products = model.num_parameters - (0 if model.config.tied else shape.vocabulary * shape.width)
    for name, seconds in samples.items():
        spread = Spread.of(seconds)
        yield {
            "model": shape.name,
            "pass": name,
            **spread.columns("seconds"),
            "times_as_fast": round(baseline / spread.median, 2),
            "gflop_per_s": rounded(6 * weights_of_products * num_tokens / spread.median / 1e9),
        }
    del model, theirs, contestants
    gc.collect()


def _pass(model: Decoder, batch: MicroBatch, activations: Activations) -> float:
    model.hold_activations(activations)
    model.zero_grad(set_to_none=True)
    started = time.perf_counter()
    scores = score_tokens(model, batch, temperature=1.0, compute_dtype="float32", train_entropy=False)
    (-scores.logprobs_N.mean()).backward()  # type: ignore[no-untyped-call]
    return time.perf_counter() - started


def _decoder(shape: Shape, length: int) -> Decoder:
    config = DecoderConfig(
        vocab_size=shape.vocabulary,
        width=shape.width,
        num_layers=shape.layers,
        num_heads=shape.heads,
        num_kv_heads=shape.kv_heads,
        head_dim=HEAD_DIM,
        mlp_width=shape.mlp,
        max_positions=length,
        rope_theta=1e6,
        norm_eps=1e-6,
        tied=True,
        dtype=torch.float32,
        qk_norm=True,
    )
    model = Decoder(config, torch.float32)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    return model


def _batch(shape: Shape, arguments: argparse.Namespace) -> MicroBatch:
    ids = _ids(shape, arguments).tolist()
    answers = [
        TrainingTrajectory(
            group=number,
            prompt_ids=(row[0],),
            response_ids=tuple(row[1:]),
            behaviour_logprobs=(0.0,) * (len(row) - 1),
            reward=1.0,
        )
        for number, row in enumerate(ids)
    ]
    num_tokens = arguments.sequences * arguments.length
    [batch] = batch_step(answers, max_tokens=num_tokens, device="cpu").micro_batches
    return batch


def _ids(shape: Shape, arguments: argparse.Namespace) -> torch.Tensor:
    draw = torch.Generator().manual_seed(0)
    return torch.randint(0, shape.vocabulary, (arguments.sequences, arguments.length), generator=draw)


def _transformers(shape: Shape, arguments: argparse.Namespace) -> Callable[[], float]:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        intermediate_size=shape.mlp,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=HEAD_DIM,
        max_position_embeddings=arguments.length,
        tie_word_embeddings=True,
        use_cache=False,
    )
    model: Any = Qwen3ForCausalLM(config)  # float32, as it is made
    ids = _ids(shape, arguments)

    def run() -> float:
        model.zero_grad(set_to_none=True)
        started = time.perf_counter()
        model(input_ids=ids, labels=ids).loss.backward()
        return time.perf_counter() - started

    return run
