"""The model of the bench, as wide as a public one and with fewer layers; its engines, and versions of its weights.

Invariant: every version has the same bytes. An install copies them as usual; the generated text is meaningless.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from engine.inference.block_manager import BLOCK_TOKENS
from engine.models.loading import load_decoder, model_tensors
from engine.models.make_random import make_random
from engine.policy.lineage import WeightsId
from engine.sim.costs.lengths import LONGEST_PROMPT
from engine.sim.costs.models import Model
from engine.weights.port import WeightVersion
from engine.weights.snapshot import pack_weights
from tests.bench.engine.deciding.engine import CountingEngine
from tests.bench.engine.rollouts.in_vllm import without_end

VOCABULARY: Final = 1_024
"""With a full vocabulary the head would dominate a step of a model of few layers."""
FIRST: Final = WeightsId(0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    folder: Path
    model: Model
    """The model's figures for the cost models."""
    weights: WeightVersion
    kv_tokens: int
    max_batch: int
    clock: Callable[[], float] = time.thread_time

    def version(self, weights: WeightsId) -> WeightVersion:
        return replace(self.weights, manifest=replace(self.weights.manifest, weights=weights))

    def engine(self, *, slots: int = 1) -> CountingEngine:
        """`slots`: the number of engines that share the room."""
        return CountingEngine(self.folder, max_batch=self.max_batch, device="cpu", kv_tokens=self.kv_tokens // slots)


@contextmanager
def machine_of(
    config: Mapping[str, Any],
    *,
    layers: int,
    longest: int,
    max_batch: int,
    clock: Callable[[], float] = time.thread_time,
) -> Iterator[Machine]:
    """`config`: a config.json's. `longest`: tokens of a sequence, prompt and all."""
    config = {
        **config,
        "num_hidden_layers": layers,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": longest + 1,
        "tie_word_embeddings": True,
    }
    with TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        make_random(folder, config)
        without_end(folder)
        decoder = load_decoder(folder, device="cpu")
        weights = pack_weights(model_tensors(decoder), weights=FIRST)
        yield Machine(
            folder=folder,
            model=Model(
                name=f"{layers} x {config['hidden_size']:,} wide",
                weight_bytes=float(weights.manifest.num_bytes),
                kv_bytes=float(2 * layers * decoder.config.num_kv_heads * decoder.config.head_dim * 2),
                num_layers=layers,
                tensor_parallel=1,
            ),
            weights=weights,
            kv_tokens=max(max_batch * (longest + BLOCK_TOKENS), LONGEST_PROMPT + longest),
            max_batch=max_batch,
            clock=clock,
        )
