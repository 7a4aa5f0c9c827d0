"""Two processes that train a job's model together, and what each of them held: real ranks, real collectives.

Counted storage by storage, as operations make them: gloo copies what it adds up, and a CPU's kernels an operand of
another dtype, which a device's do not.

A public model's widths and vocabulary (SmolLM2-360M), two of its layers.
"""

import gc
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch._dynamo  # noqa: F401 - which looks at what DeepSpeed puts in torch's place, unless it comes first

from engine.spec.job import JobSpec
from engine.training.factory import build_trainer
from engine.training.port import TrainingTrajectory
from engine.training.ranks.world import World
from engine.training.settings import TrainerSettings
from tests.engine.fit.measured.memory_of_a_pass import LiveBytes
from tests.engine.training.ranks.worlds import run_ranks

WIDE: Final[Mapping[str, Any]] = {
    "model_type": "llama",
    "vocab_size": 49_152,
    "hidden_size": 960,
    "intermediate_size": 2_560,
    "num_hidden_layers": 2,
    "num_attention_heads": 15,
    "num_key_value_heads": 5,
    "head_dim": 64,
    "max_position_embeddings": 8_192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100_000,
    "tie_word_embeddings": True,
    "dtype": "bfloat16",
}
ENDED_WITHIN_S: Final = 600.0
NUM_TOKENS: Final = 128
"""Of each of four micro-batches, two a rank."""


def job(**parts: dict[str, Any]) -> JobSpec:
    trainer = {"micro_batch_tokens": NUM_TOKENS, "activations": "recomputed", **parts.pop("trainer", {})}
    rollout = {"max_new_tokens": NUM_TOKENS // 2}
    return JobSpec.model_validate(
        {"name": "t", "trainer": trainer, "rollout": rollout, "resources": {"trainer_devices": 2}, **parts}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Bytes that a rank held at its fullest."""

    loading: int
    """While it loads a model, without its own part of it."""
    training: int
    saving: int
    """More than before: for the copy that a checkpoint is written from."""


def held_by_ranks(specs: Mapping[str, JobSpec], folder: Path, results: Path) -> dict[str, list[Held]]:
    """Of each job, by each rank."""
    told = {name: spec.model_dump_json() for name, spec in specs.items()}
    assert run_ranks(2, _measure, told, folder, results, are_fresh=True, within_s=ENDED_WITHIN_S) == [0, 0]
    by_rank = [json.loads((results / f"rank-{rank}.json").read_text()) for rank in (0, 1)]
    return {name: [Held(**of_rank[name]) for of_rank in by_rank] for name in specs}


def _measure(world: World, specs: Mapping[str, str], folder: Path, results: Path) -> None:
    held: dict[str, dict[str, int]] = {}
    for name, told in specs.items():
        spec = JobSpec.model_validate_json(told)
        with LiveBytes() as live:
            trainer = build_trainer(folder, TrainerSettings.of(spec), device="cpu", world=world)
            live.peak = live.now  # what came and went while DeepSpeed laid weights out is its host's
            for _ in range(2):
                trainer.train_step(_answers())
            training, before = live.peak, live.now
            live.peak = before
            _in_own_memory(trainer)
            with TemporaryDirectory(dir=results) as folder_of_rank:  # a gigabyte of each job, not read
                trainer.prepare_save(Path(folder_of_rank) / name)()
            held[name] = {"training": training, "saving": live.peak - before}
        held[name]["loading"] = _beside_weights(trainer, folder)
        trainer.close()
        del trainer
        gc.collect()
    (results / f"rank-{world.index}.json").write_text(json.dumps(held))


def _beside_weights(trainer: Any, folder: Path) -> int:
    """Of the same model, read once more."""
    with LiveBytes() as live:
        model = trainer._sharding.load(folder)
        read: Any = model
        if trainer._settings.trainer.backend == "torch":  # FSDP reads it only then
            read = trainer._make_frozen(model)
        beside: int = live.peak - live.now
        del read
        return beside


def _in_own_memory(trainer: Any) -> None:
    """A checkpoint's copy in memory even if this machine is short of it: mapped, it would not be counted."""
    trainer._saver._staging._spare = lambda *, num_sharing: sys.maxsize


def _answers() -> list[TrainingTrajectory]:
    half = NUM_TOKENS // 2
    return [
        TrainingTrajectory(
            group=index // 4,
            prompt_ids=(index + 1,),
            response_ids=tuple(range(10 + index, 10 + index + half)),
            behaviour_logprobs=(-10.0,) * half,
            reward=float(index % 2),
        )
        for index in range(8)
    ]
