"""Two versions that a trainer publishes in bfloat16, one step of 1e-6 apart: a probe cannot tell one from the other."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import torch

from engine.policy.lineage import WeightsId
from engine.spec.job import OptimizerSpec, TrainerSpec
from engine.training.factory import build_trainer
from engine.weights.port import WeightVersion
from engine.weights.snapshot import map_weights
from tests.engine.inference.rollout_engine_builders import make_model
from tests.engine.training.trainer_conformance import settings, trajectories_of

SCALE: Final = 0.1  # of the usual random matrices: in bfloat16, a step of 1e-6 then rounds some weights of each


@dataclass(frozen=True, kw_only=True)
class Trained:
    folder: Path
    first: WeightVersion
    second: WeightVersion

    def old(self, name: str) -> torch.Tensor:
        """A copy of the first version's tensor. If the step was too small to change any weight, with one other bit."""
        old, new = (map_weights(each)[name].clone() for each in (self.first, self.second))
        if old.equal(new):
            old.view(torch.int16).view(-1)[-1] ^= 1
        return old


def trained(folder: Path) -> Trained:
    """A mixture with a dense layer, a tied head, and one head of keys, which two workers both hold."""
    model = make_model(folder, layout="qwen3_moe", tied=True, kv_heads=1).model
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(SCALE)
    model.to(torch.bfloat16).save_pretrained(folder)
    optimizer = OptimizerSpec(learning_rate=1e-6, warmup_steps=0)
    trainer = build_trainer(
        folder, settings(trainer=TrainerSpec(compute_dtype="bfloat16"), optimizer=optimizer), device="cpu"
    )
    versions: list[WeightVersion] = []
    for number in range(2):
        published = trainer.snapshot(WeightsId(0, number))
        versions.append(replace(published, manifest=replace(published.manifest, probe=trainer.probe())))
        trainer.train_step(trajectories_of(number))
    return Trained(folder=folder, first=versions[0], second=versions[1])
