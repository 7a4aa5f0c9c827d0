"""The torch engine's part of `bench gpu`: its speed on a device, each figure with its bound.

    decode      tokens a second of every batch and context; at the most the memory's own speed over the bytes of a step:
                all weights that multiply, once, and the keys and values of every row. The goal is GOAL of it
    read in     prompts, one at a time; at the most the speed of products
    draw        one token a row out of the logits; at the most the memory's own speed over the logits, read once
    install     a version of the first model, from the host's memory into its place; at the most the link's speed

Weights are random, made where they lie. Rows are read in for true, each its own prompt, so that no two share a page;
the largest batch comes first, and smaller ones are what is left of it.
"""

import gc
import itertools
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from engine.fit.durations.step import forward_flops
from engine.fit.replica import ReplicaPlan, replica_need
from engine.fit.shape import ModelShape
from engine.inference.port import SamplingParams, SequenceRequest
from engine.inference.sampling import RowSampling, sample_tokens, uniforms
from engine.inference.torch_engine import PREFILL_TOKENS, TorchRolloutEngine
from engine.models.loading import model_tensors
from engine.models.make_random import STD
from engine.policy.lineage import WeightsId
from engine.scorecard.tables import Row
from engine.weights.snapshot import pack_weights
from tests.bench.engine.rollouts.on_device import Bench, kv_bytes_of_a_token, row_of, weight_bytes_of_a_step

GOAL: Final = 0.7
"""Of the bound, of decoding."""
WARM_UP_STEPS: Final = 3
"""A kind of step runs as it is, is captured, is played."""
CUTS: Final = {"top_p": 0.95, "top_k": 50}

_NUMBERS = itertools.count()


def torch_rows(bench: Bench) -> Iterator[Row]:
    for name, config in bench.scale.configs.items():
        figures: dict[str, Callable[[], Iterator[Row]]] = {
            f"{name} at {context:,}": partial(_of_rollouts, bench, name, config, context)
            for context in bench.scale.contexts
        }
        figures[f"{name}, drawing"] = partial(_of_drawing, bench, name, ModelShape.of_config(config))
        if name == next(iter(bench.scale.configs)):
            figures[f"{name}, install"] = partial(_of_installing, bench, name, config)
        for what, rows in figures.items():
            if bench.is_over():
                bench.remark(f"not tried: torch engine, {what}, for want of time")
                continue
            try:
                yield from rows()
            except (RuntimeError, MemoryError, ImportError, NotImplementedError) as error:
                told = f"{type(error).__name__}: {str(error).splitlines()[0]}"
                bench.remark(f"could not be tried: torch engine, {what}: {told}")
            _forget(bench.device)


def _of_rollouts(bench: Bench, name: str, config: Any, context: int) -> Iterator[Row]:
    shape = ModelShape.of_config(config)
    fitting = [batch for batch in bench.scale.batches if _fits(bench, shape, batch, context, name)]
    if not fitting:
        return
    engine = _engine(bench, config, max(fitting), context)
    yield _reading_in(bench, engine, shape, f"torch engine: {name}, reading in {context:,}", context)
    yield from _decoding(bench, engine, shape, name, sorted(fitting, reverse=True), context)


def _fits(bench: Bench, shape: ModelShape, batch: int, context: int, name: str) -> bool:
    if bench.device == "cpu":
        return True
    plan = ReplicaPlan(
        weight_slots=1,
        max_batch=batch,
        longest=context,
        kv_tokens=_room(bench, batch, context),
        takes_kv_at_once=True,
        read_in_tokens=PREFILL_TOKENS,
    )
    needed, there = replica_need(shape, plan).num_bytes, torch.cuda.mem_get_info()[0]
    if needed > there:
        told = f"needs {needed / 1e9:.0f} GB, {there / 1e9:.0f} are free"
        bench.remark(f"could not be tried: torch engine, {name}, {batch} rows at {context:,}: {told}")
    return needed <= there


def _room(bench: Bench, batch: int, context: int) -> int:
    """The room for rows that decode during the prefill of the last ones and through all measurements."""
    num_steps = len(bench.scale.batches) * (WARM_UP_STEPS + bench.scale.num_steps * bench.repeats)
    return batch * (context + _steps_of_reading(batch, context) + num_steps + 32)


def _steps_of_reading(batch: int, context: int) -> int:
    return batch * context // PREFILL_TOKENS


def _engine(bench: Bench, config: Any, max_batch: int, context: int) -> TorchRolloutEngine:
    room = _room(bench, max_batch, context)
    with tempfile.TemporaryDirectory() as folder:
        # Nothing is an end, and positions go as far as the rows.
        settings = {**config, "eos_token_id": [], "hidden_act": "silu"}
        settings["max_position_embeddings"] = max(config["max_position_embeddings"], room // max_batch)
        (Path(folder) / "config.json").write_text(json.dumps(settings))
        engine = TorchRolloutEngine(
            Path(folder),
            max_batch=max_batch,
            device=bench.device,
            kv_tokens=room,
            layout="paged",
            begins_empty=True,
        )
    with torch.no_grad():
        for weight_name, parameter in engine._model.named_parameters():
            if "norm" in weight_name:
                parameter.fill_(1.0)
            else:
                parameter.normal_(std=STD)
    engine._installer._is_empty = False  # a version of 16 GB would have to be made and mapped for nothing else
    return engine


def _request(shape: ModelShape, num_tokens: int, new_tokens: int) -> SequenceRequest:
    number = next(_NUMBERS)
    chance = torch.Generator().manual_seed(number)
    prompt = torch.randint(shape.vocab_size, (num_tokens,), generator=chance).tolist()
    sampling = SamplingParams(max_new_tokens=new_tokens, temperature=1.0, seed=number)
    return SequenceRequest(sequence_id=str(number), prompt_ids=tuple(prompt), sampling=sampling)


def _reading_in(bench: Bench, engine: TorchRolloutEngine, shape: ModelShape, figure: str, context: int) -> Row:
    rates: list[float] = []
    for number in range(bench.repeats + 1):
        request = _request(shape, context, 1)
        started = time.perf_counter()
        engine.submit([request])
        while not engine.step():
            pass
        seconds = time.perf_counter() - started
        if number:  # the first one chooses kernels
            rates.append(forward_flops(shape, num_tokens=context, length=context) / seconds / 1e12)
    products = bench.ceilings.get("products")
    return row_of(figure, "Tflop/s", rates, None if products is None else products / 1e12, "products")


def _decoding(
    bench: Bench, engine: TorchRolloutEngine, shape: ModelShape, name: str, batches: list[int], context: int
) -> Iterator[Row]:
    steps_of_reading = _steps_of_reading(batches[0], context)
    room = _room(bench, batches[0], context) // batches[0]
    requests = [_request(shape, context - steps_of_reading // 2, room) for _ in range(batches[0])]
    before, num_gone = engine.view().num_decoded, 0
    engine.submit(requests)
    while not _has_begun(engine, requests[-1].sequence_id):
        engine.step()
    for batch in batches:
        gone = engine.abort([each.sequence_id for each in requests[batch:]])
        num_gone += sum(len(each.token_ids) for each in gone)
        requests = requests[:batch]
        for _ in range(WARM_UP_STEPS):
            engine.step()
        rates: list[float] = []
        bounds: list[float] = []
        for _ in range(bench.repeats):
            started = time.perf_counter()
            for _ in range(bench.scale.num_steps):
                engine.step()
            rates.append(batch * bench.scale.num_steps / (time.perf_counter() - started))
            held = sum(len(each.prompt_ids) for each in requests) + engine.view().num_decoded - before - num_gone
            middle = held - batch * bench.scale.num_steps / 2
            num_bytes = weight_bytes_of_a_step(shape) + middle * kv_bytes_of_a_token(shape)
            bounds.append(batch * bench.ceilings.get("memory", 0.0) / num_bytes)
        bound = sum(bounds) / len(bounds) or None
        figure = f"torch engine: {name}, {batch} rows at {context:,}"
        yield {**row_of(figure, "tokens/s", rates, bound, "memory"), "goal": GOAL}


def _has_begun(engine: TorchRolloutEngine, sequence_id: str) -> bool:
    """Whether the row, and so all earlier ones, has generated a token."""
    (now,) = engine.export([sequence_id], leave=False, with_kv=False)
    return now.progress is not None


def _of_drawing(bench: Bench, name: str, shape: ModelShape) -> Iterator[Row]:
    batch = max(bench.scale.batches)
    logits_BV = torch.randn(batch, shape.vocab_size, device=bench.device).to(torch.bfloat16)
    rows_B = torch.arange(batch, device=bench.device)
    for words, cuts in (("", {}), (" of the likeliest", CUTS)):
        asked = SamplingParams(max_new_tokens=1, temperature=1.0, seed=0, **cuts)  # type: ignore[arg-type]
        sampling = RowSampling.of([asked] * batch, bench.device)
        rates: list[float] = []
        for number in range(bench.repeats + 2):
            _wait(bench.device)
            started = time.perf_counter()
            tokens_B, _ = sample_tokens(logits_BV, sampling, uniforms(rows_B, rows_B), by_stretches=True)
            tokens_B.tolist()
            if number >= 2:
                rates.append(logits_BV.nbytes / (time.perf_counter() - started) / 1e9)
        memory = bench.ceilings.get("memory")
        figure = f"torch engine: {name}, drawing for {batch} rows{words}"
        yield row_of(figure, "GB/s", rates, None if memory is None else memory / 1e9, "memory")


def _of_installing(bench: Bench, name: str, config: Any) -> Iterator[Row]:
    engine = _engine(bench, config, 1, min(bench.scale.contexts))
    version = pack_weights(
        {name: tensor.cpu() for name, tensor in model_tensors(engine._model).items()}, weights=WeightsId(0, 1)
    )
    rates: list[float] = []
    for number in range(bench.repeats + 1):
        _wait(bench.device)
        started = time.perf_counter()
        engine.install(version)
        _wait(bench.device)
        if number:  # the first one finds memory
            rates.append(len(version.buffer) / (time.perf_counter() - started) / 1e9)
    link = bench.ceilings.get("link")
    yield row_of(f"torch engine: {name}, install", "GB/s", rates, None if link is None else link / 1e9, "link")


def _wait(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()


def _forget(device: str) -> None:
    gc.collect()
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()
