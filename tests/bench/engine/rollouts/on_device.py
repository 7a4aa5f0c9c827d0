"""The vLLM part of `bench gpu`: the speed of vLLM as a rollout engine on a device, each figure with its bound.

    decode      tokens a second of every batch and context; at the most the memory's own speed over the bytes of a step:
                all weights that multiply, once, and the keys and values of every row
    install     new weights in place; at the most the link's speed
    ours        seconds a step that are not vLLM's

First as our engine runs it by itself; then a figure of each other way to run it: vLLM's V1 runner, its V2 runner that
waits for each step's tokens, and its asynchronous engine, whose core is a process of its own. Every way is a process of
vLLM's own environment.
"""

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from engine.fit.known_models import KNOWN_CONFIGS
from engine.fit.shape import ModelShape
from engine.models.make_random import make_random
from engine.scorecard.tables import Row, Spread, rounded
from tests.bench.engine.rollouts.in_vllm import Ask, process_of, vllm_python, without_end

OWN_WAY: Final = "as it runs"
OTHER_WAYS: Final = ("V2, waiting for each step", "V1", "asynchronous engine")
NO_VLLM: Final = "not tried: what vLLM does with it; its environment is not set up here: `make vllm`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    configs: Mapping[str, Mapping[str, Any]]
    """The first is that of the other ways, too."""
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    num_steps: int
    """Of one measurement."""
    other_ways: tuple[str, ...]


OF_A_GPU: Final = Scale(
    configs={name: KNOWN_CONFIGS[name] for name in ("Qwen3-0.6B", "Qwen3-8B")},
    batches=(1, 16, 64),
    contexts=(2_048, 8_192),
    num_steps=32,
    other_ways=OTHER_WAYS,
)
OF_A_CPU: Final = Scale(
    configs={
        "tiny": {
            **KNOWN_CONFIGS["Qwen3-0.6B"],
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "intermediate_size": 96,
            "vocab_size": 512,
            "max_position_embeddings": 256,
        }
    },
    batches=(1, 3),
    contexts=(40,),
    num_steps=4,
    other_ways=(),  # a CPU has the V1 runner alone, and the asynchronous engine takes a minute to start
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    device: str
    scale: Scale
    ceilings: Mapping[str, float]
    """Bytes a second that were measured, of memory and of the link."""
    repeats: int
    is_over: Callable[[], bool]
    """The time for it."""
    remark: Callable[[str], None]


def vllm_rows(bench: Bench, *, python: str | None = None) -> Iterator[Row]:
    found = vllm_python(python)
    if found is None:
        bench.remark(NO_VLLM)
        return
    for number, (name, config) in enumerate(bench.scale.configs.items()):
        with tempfile.TemporaryDirectory() as folder:
            make_random(Path(folder), config)
            without_end(Path(folder))
            for way in (OWN_WAY, *(bench.scale.other_ways if not number else ())):
                if bench.is_over():
                    bench.remark(f"not tried: vLLM, {name}, {way}, for want of time")
                else:
                    yield from _rows_of(bench, found, Path(folder), name, way)


def _rows_of(bench: Bench, python: str, folder: Path, name: str, way: str) -> Iterator[Row]:
    """The rows of one process. Failures are listed by name."""
    shape = ModelShape.of_config(bench.scale.configs[name])
    settings = {"folder": str(folder), "device": bench.device, "way": way, "max_batch": max(bench.scale.batches)}
    with process_of(python, "tests.bench.engine.rollouts.on_device_vllm", [json.dumps(settings)]) as ask:
        try:
            ask({"do": "start"})
        except RuntimeError as error:
            bench.remark(f"could not be tried: vLLM {way}: {name}: {error}")
            return
        for what, figure in _figures(bench, shape, way):
            try:
                yield from figure(f"vLLM {way}: {name}, {what}", ask)
            except RuntimeError as error:
                bench.remark(f"could not be tried: vLLM {way}: {name}, {what}: {error}")


Figure = Callable[[str, Ask], Iterator[Row]]


def _figures(bench: Bench, shape: ModelShape, way: str) -> Iterator[tuple[str, Figure]]:
    scale = bench.scale
    pairs = [(batch, context) for context in scale.contexts for batch in scale.batches]
    for batch, context in pairs if way == OWN_WAY else [(scale.batches[-1], scale.contexts[0])]:
        yield f"{batch} rows at {context}", _decoding(bench, shape, batch, context)
    if way == OWN_WAY:
        yield "install", _installing(bench)


def _decoding(bench: Bench, shape: ModelShape, batch: int, context: int) -> Figure:
    def rows(figure: str, ask: Ask) -> Iterator[Row]:
        steps = bench.scale.num_steps
        answer = ask({"do": "decode", "batch": batch, "context": context, "steps": steps, "repeats": bench.repeats})
        rates = [batch * steps / seconds for seconds in answer["seconds"]]
        middle = answer["context"] - steps * bench.repeats / 2
        num_bytes = weight_bytes_of_a_step(shape) + batch * middle * kv_bytes_of_a_token(shape)
        memory = bench.ceilings.get("memory")
        bound = None if memory is None else batch * memory / num_bytes
        yield row_of(figure, "tokens/s", rates, bound, "memory")
        if answer["own_ms"]:
            yield row_of(f"{figure}, ours of a step", "ms", answer["own_ms"], None, "")

    return rows


def _installing(bench: Bench) -> Figure:
    def rows(figure: str, ask: Ask) -> Iterator[Row]:
        answer = ask({"do": "install", "repeats": bench.repeats})
        link = bench.ceilings.get("link")
        rates = [answer["bytes"] / seconds / 1e9 for seconds in answer["seconds"]]
        yield row_of(figure, "GB/s", rates, None if link is None else link / 1e9, "link")

    return rows


def weight_bytes_of_a_step(shape: ModelShape) -> int:
    """The weights read in a step: without the embedding, unless it is also the head."""
    return shape.stored_bytes * (shape.num_weights - (0 if shape.tied else shape.vocab_size * shape.width))


def kv_bytes_of_a_token(shape: ModelShape) -> int:
    return 2 * shape.num_layers * shape.key_width * shape.stored_bytes


def row_of(figure: str, unit: str, samples: list[float], bound: float | None, bound_by: str) -> Row:
    spread = Spread.of(samples)
    return {
        "figure": figure,
        "unit": unit,
        "median": rounded(spread.median),
        "lowest": rounded(spread.lowest),
        "highest": rounded(spread.highest),
        "bound": None if bound is None else rounded(bound),
        "bound_by": bound_by or None,
        "share": None if bound is None else round(spread.median / bound, 3),
    }
