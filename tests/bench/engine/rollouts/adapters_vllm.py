"""Installing a version of an adapter and decoding with it: next to its base in one vLLM, and merged into its weights.

`python -m tests.bench.engine.rollouts.adapters_vllm`, by the interpreter of vLLM's environment. Random weights; greedy.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import torch

from engine.fit.known_models import KNOWN_CONFIGS
from engine.inference.port import RolloutEngine, SamplingParams, SequenceRequest
from engine.inference.vllm.adapters import AdapterEngines
from engine.inference.vllm.engine import VllmRolloutEngine
from engine.inference.vllm.start import AdapterRoom, read_shapes
from engine.live.weights.segments import lent_folder
from engine.models.make_random import make_random
from engine.policy.lineage import WeightsId
from engine.scorecard.tables import Row, Spread
from engine.weights.low_rank import TARGETS, fingerprint, names_of
from engine.weights.port import LowRank, WeightVersion
from engine.weights.snapshot import pack_weights
from tests.bench.engine.report import Report, in_turns, machine, show

BATCH, PROMPT_TOKENS, NEW_TOKENS = 16, 16, 48
SMALLER: Final = {"vocab_size": 8_192, "max_position_embeddings": 256}
NUM_LAYERS: Final = {"50 MB": 1, "400 MB": 12}
"""Of Qwen3-0.6B's widths, in bfloat16."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.engine.rollouts.adapters_vllm", description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = [
        row
        for size, num_layers in NUM_LAYERS.items()
        for rank in arguments.ranks
        for row in _measured(size, num_layers, rank, arguments.repeats)
    ]
    show(Report(bench="adapters", rows=rows), machine(), as_json=arguments.json)


def _measured(size: str, num_layers: int, rank: int, repeats: int) -> Iterator[Row]:
    folder = Path(tempfile.mkdtemp(prefix="adapters-"))
    config = {**KNOWN_CONFIGS["Qwen3-0.6B"], **SMALLER, "num_hidden_layers": num_layers}
    make_random(folder, {**config, "architectures": ["Qwen3ForCausalLM"]})
    versions = [_random_version(folder, rank, number) for number in (1, 2)]
    kv_tokens = 2 * BATCH * (PROMPT_TOKENS + NEW_TOKENS)
    merged = [VllmRolloutEngine(folder, max_batch=BATCH, device="cpu", kv_tokens=kv_tokens) for _ in range(2)]
    room = AdapterRoom(num=2, rank=rank)
    vllm = VllmRolloutEngine(folder, max_batch=BATCH, device="cpu", kv_tokens=kv_tokens, adapters=room)
    engines = AdapterEngines(vllm, folder, room=room, lend_folder=partial(lent_folder, "bench"))
    beside = [engines.make(), engines.make()]
    KEPT.append((merged, vllm))
    ways: dict[str, list[RolloutEngine]] = {"merged": [*merged], "beside the base": [*beside]}
    measures: dict[str, Callable[[], float]] = {}
    for way, both in ways.items():
        measures[f"{way}, install_s"] = partial(_install_s, both, versions)
        measures[f"{way}, one version, tokens_per_s"] = partial(_tokens_per_s, both[:1])
        measures[f"{way}, two versions, tokens_per_s"] = partial(_tokens_per_s, both)
    for measure in measures.values():
        measure()
    for name, samples in in_turns(measures, repeats=repeats).items():
        yield {"model": size, "rank": rank, "what": name, **Spread.of(samples).columns("value")}


KEPT: Final[list[object]] = []
"""The first engine that ends would take vLLM's process groups with it."""


def _random_version(folder: Path, rank: int, number: int) -> WeightVersion:
    chance, given = torch.Generator().manual_seed(number), dict[str, torch.Tensor]()
    for name, shape in read_shapes(folder).items():
        if name.split(".")[-2] in TARGETS:
            pair = zip(names_of(name.removesuffix(".weight")), ((rank, shape[1]), (shape[0], rank)), strict=True)
            given |= {which: 0.01 * torch.randn(of, generator=chance) for which, of in pair}
    low_rank = LowRank(base=fingerprint(folder), scale=2.0)
    return pack_weights(given, weights=WeightsId(0, number), low_rank=low_rank)


def _install_s(engines: list[RolloutEngine], versions: list[WeightVersion]) -> float:
    """The mean of two."""
    begun = time.perf_counter()
    for engine, version in zip(engines, versions, strict=True):
        engine.install(version)
    return (time.perf_counter() - begun) / len(engines)


def _tokens_per_s(engines: list[RolloutEngine]) -> float:
    """So many rows in all, divided among the engines."""
    num_left, begun = BATCH, time.perf_counter()
    for row in range(BATCH):
        sampling = SamplingParams(max_new_tokens=NEW_TOKENS, temperature=0.0, seed=0)
        prompt = tuple(5 + (7 * at + 13 * row) % 900 for at in range(PROMPT_TOKENS))
        asked = SequenceRequest(sequence_id=str(row), prompt_ids=prompt, sampling=sampling)
        engines[row % len(engines)].submit([asked])
    num_tokens = 0
    while num_left:
        for engine in engines:
            ended = engine.step()
            num_left -= len(ended)
            num_tokens += sum(len(output.token_ids) for output in ended)
    return num_tokens / (time.perf_counter() - begun)


if __name__ == "__main__":
    main()
